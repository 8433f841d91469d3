"""What a stream of messages was like: rates, sizes, latency, losses, and gaps in the publishers' numbering."""
