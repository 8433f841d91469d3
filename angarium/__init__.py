"""Angarium, an event broker cluster: what runs in the processes of its users."""
