"""Lanes: the messages of endpoints at their home, their states, and the flows that consume them.

A lane is one partition of an endpoint; an endpoint without partitions has lane 0 only. Everything here is a
state machine without clock, file or socket. `node.home` stores what lanes keep and carries out what they
decide.
"""
