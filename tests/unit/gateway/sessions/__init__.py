"""Tests of gateway.mqtt.sessions without a client around them."""
