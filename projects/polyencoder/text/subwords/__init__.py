"""ConveRT's subwords: words split at punctuation and separators, greedy longest prefixes, hashed unknown characters."""
