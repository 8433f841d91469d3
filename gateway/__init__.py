"""Gateways: processes that speak other people's protocols and stand at the router for all of their clients."""
