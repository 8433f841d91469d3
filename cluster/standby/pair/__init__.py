"""What decides which host of a pair is the primary, and until when; no I/O."""
