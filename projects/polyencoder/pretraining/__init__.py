"""Pre-training: an encoder from texts and conversations alone (Section 4.1 of Humeau et al., ICLR 2020)."""
