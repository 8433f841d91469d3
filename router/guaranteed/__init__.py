"""Guaranteed messages in the router: endpoints and flows, producers and admission, and the homes behind them."""
