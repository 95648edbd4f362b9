"""`-m tfidf`: the keyword baseline, without a neural model."""
