"""`-m lateencoder`: a bi-encoder whose score also compares tokens and turns."""
