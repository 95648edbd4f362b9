"""Milvus as an engine of indexes: in one file (Milvus Lite) or beyond one machine, with the same code."""
