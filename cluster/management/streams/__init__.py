"""Streams of the management API (Server-Sent Events): events of the node, and how far jobs are.

A stream asks the controller again and again, on behalf of who opened it, so the controller judges each piece; it asks
for no more while its client does not read, so a slow one costs what one piece takes, and the node's own list of events
is what waits for it.
"""
