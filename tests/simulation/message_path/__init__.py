"""The path of a message: which files and functions of ours it passes, found by running the real state machines."""
