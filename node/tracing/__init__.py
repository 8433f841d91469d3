"""Spans of a worker: what happens to sampled messages of its endpoints, and who is told of it."""
