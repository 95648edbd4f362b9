"""FAISS as an engine: candidate generation for the vectors of an index folder."""
