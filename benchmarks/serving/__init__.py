"""`polyencoder serve` under load; see `__main__`."""
