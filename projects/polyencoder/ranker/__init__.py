"""The ranker: text in, ranked candidates out."""
