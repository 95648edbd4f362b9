"""`-m tfidf`: no model at all, the words that a candidate shares with the context."""
