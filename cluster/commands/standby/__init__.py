"""The command about the two hosts of a node."""
