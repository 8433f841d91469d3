"""Who asks for an operation, what they may do, and what is written down of it."""
