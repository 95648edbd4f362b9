"""Files that survive a kill: atomic writes, checkpoints, safe loading."""
