"""Clients that do harm with the rights that everybody has, and what others notice of it."""
