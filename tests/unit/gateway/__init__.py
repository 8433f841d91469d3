"""Tests of the gateways."""
