"""Controller, links, bridges and the command."""
