"""What the router knows of its clients: sessions, Message VPNs and profiles, filters, batches that are under way."""
