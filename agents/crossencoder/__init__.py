"""`-m crossencoder`: encodes context and candidate together."""
