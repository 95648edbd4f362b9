"""`python -m benchmarks.gpu`: all that only a GPU can show, in parts that each take minutes."""
