"""`-m polyencoder`: several context vectors, attended by each candidate."""
