"""Subscriptions of a client: what it wants to receive, and how messages find the readers."""
