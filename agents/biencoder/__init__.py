"""`-m biencoder`: encodes candidates and contexts separately, one vector each."""
