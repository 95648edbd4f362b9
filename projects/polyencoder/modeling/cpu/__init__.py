"""What makes transformers fast, and keeps them small, on a CPU."""
