"""CPU kernels and memory for transformers: attention, dropout, linear layers, the heap."""
