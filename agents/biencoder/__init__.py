"""`-m biencoder`: candidates and contexts encoded apart, one vector each."""
