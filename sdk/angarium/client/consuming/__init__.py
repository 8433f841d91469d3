"""Consuming guaranteed messages: flows, their credit, and messages that are settled."""
