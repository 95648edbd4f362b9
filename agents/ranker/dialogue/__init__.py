"""From messages of ParlAI to examples, their candidates, and metrics of answers."""
