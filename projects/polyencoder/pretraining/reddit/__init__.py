"""Dumps of Reddit, comments and submissions, as pairs of contexts and responses to pre-train on."""
