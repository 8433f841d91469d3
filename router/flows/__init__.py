"""Consumers: clients bound to endpoints, their ends at the homes, and who has which partition."""
