"""ConveRT: contexts and responses through one small encoder, which people can train anew."""
