"""Pre-training of encoders on texts and conversations (Section 4.1 of Humeau et al., ICLR 2020)."""
