"""Joining a cluster with one command: tokens, what the two sides say, what each keeps."""
