"""Search of vectors in numpy: encoded contexts, their scores, and the best rows of a source. Imports no torch."""
