"""Publishing: direct messages, producers of guaranteed ones, and transactions across connections."""
