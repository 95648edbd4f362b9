"""Training and evaluation data: readers, seeded epochs, batches, candidate pools, negative sampling."""
