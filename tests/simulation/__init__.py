"""Nodes as state machines in simulated time, disturbed as a seed says, and how runs are judged."""
