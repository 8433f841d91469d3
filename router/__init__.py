"""The front process of a node: sessions, order, choice and egress."""
