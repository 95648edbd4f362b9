"""`-m pretrain_ranker`: pre-trains an encoder for rankers on any ParlAI task."""
