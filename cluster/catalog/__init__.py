"""Which objects exist, what becomes of a wish to change them, where endpoints live, and who publishes under a name."""
