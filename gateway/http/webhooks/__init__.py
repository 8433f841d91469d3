"""Webhooks: what decides about them."""
