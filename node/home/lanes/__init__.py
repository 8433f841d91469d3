"""The lanes of a home: what they hand out and to whom, how they come, move and go."""
