"""Two hosts, an outside store, and a client: whether a queue survives its host."""
