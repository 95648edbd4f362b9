"""`uni`, a cross-encoder that reads a context once, beside late interaction and a cross-encoder of pairs."""
