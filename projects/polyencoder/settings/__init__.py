"""Settings of commands and runs, each declared once as a field of a frozen dataclass (`settings.base`)."""
