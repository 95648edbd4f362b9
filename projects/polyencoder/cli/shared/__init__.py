"""What several commands share, and is no command."""
