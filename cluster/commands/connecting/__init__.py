"""Which node a command is about, and how it gets there."""
