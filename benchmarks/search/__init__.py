"""`python -m benchmarks.search`: a module for each of the five cases, and what they are measured on."""
