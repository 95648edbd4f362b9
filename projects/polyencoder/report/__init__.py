"""The report of a training run, as an HTML page."""
