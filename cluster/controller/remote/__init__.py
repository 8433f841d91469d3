"""Operators on other hosts: who may use the admin API, and the addresses where they come in."""
