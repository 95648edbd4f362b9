"""`-m convert`: ConveRT, a small encoder shared by contexts and responses, trained from scratch."""
