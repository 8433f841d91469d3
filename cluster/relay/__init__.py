"""What link and bridge processes share: two sessions with two routers, and what is relayed between them."""
