"""Learning: from the scores of a batch to the gradients of a model. Nothing of it knows ParlAI."""
