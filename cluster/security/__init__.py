"""Secrets and certificates: how they are made, read and protected."""
