"""Connections of clients: listening, framing, deadlines and limits; it knows no message, session or topic."""
