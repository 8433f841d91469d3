"""Nodes as processes, with clients of ours and bare sockets."""
