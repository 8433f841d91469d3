"""HELLO: who may come in, by password, certificate, token or as a neighbour, and what a refusal tells."""
