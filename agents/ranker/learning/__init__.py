"""How an agent learns: the step from a batch to an update, the optimizer and its schedule."""
