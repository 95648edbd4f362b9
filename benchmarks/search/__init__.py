"""`python -m benchmarks.search`: a module for each of the six cases, and what they are measured on."""
