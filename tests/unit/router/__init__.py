"""The router, and routers wired to workers, homes and each other."""
