"""How the processes of a node treat their memory: what they keep, and what the system gets back."""
