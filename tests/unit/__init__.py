"""State machines and functions by themselves, and the rules of the project."""
