"""Publishing: direct messages, producers of guaranteed ones, and stages, which are committed across connections."""
