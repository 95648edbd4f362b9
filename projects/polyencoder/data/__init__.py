"""What is learnt from and evaluated on: episodes in seeded epochs, candidate pools, negatives."""
