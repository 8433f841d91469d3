"""The link process: a client of two routers that carries interest and messages between them."""
