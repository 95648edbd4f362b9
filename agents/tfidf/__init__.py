"""`-m tfidf`: the keyword baseline, without any learnt model."""
