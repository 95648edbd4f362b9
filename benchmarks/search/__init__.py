"""`python -m benchmarks.search`: a module for each of the seven cases, and what they are measured on."""
