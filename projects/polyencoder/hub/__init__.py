"""Models by name: the Hugging Face hub and the zoo."""
