"""The model of an agent: built, loaded, trained in ParlAI's loop, and saved."""
