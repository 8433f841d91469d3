"""Workers and homes."""
