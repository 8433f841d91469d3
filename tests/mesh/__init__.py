"""Nodes joined by real links with delays and failures, and how their traffic is judged."""
