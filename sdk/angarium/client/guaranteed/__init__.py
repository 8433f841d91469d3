"""Guaranteed messages: the half of a session that is about them, operations, and the calls of a client."""
