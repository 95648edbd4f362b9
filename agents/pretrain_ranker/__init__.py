"""Pre-training in ParlAI's loop: masked words and next utterances of any task, for an encoder to make rankers of."""
