"""`python -m benchmarks.search`: a module for each of the four cases, and what they are measured on."""
