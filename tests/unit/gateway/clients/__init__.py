"""Tests of gateway.mqtt.clients."""
