"""`angarium bench`: what a node does on this machine."""
