"""Processes that are killed, and what is there afterwards."""
