"""Settings of commands and runs: each is declared once, as a field of a frozen dataclass (`settings.base`)."""
