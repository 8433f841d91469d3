"""How a node does, for those who watch over it: what is looked at, and the HTTP endpoint that tells."""
