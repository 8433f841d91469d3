"""Gateways with attached clients, at one node of real state machines that is disturbed."""
