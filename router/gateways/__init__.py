"""Gateways, which speak another protocol with their clients, and the clients that are attached to them."""
