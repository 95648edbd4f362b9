"""`-m crossencoder`: context and candidate read together."""
