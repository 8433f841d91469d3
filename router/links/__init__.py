"""Neighbours: what other nodes want of this one, and what this one tells them that it wants."""
