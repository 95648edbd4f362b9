"""How agents train in ParlAI's loop: its optimizer and schedule around the library's `Trainer`."""
