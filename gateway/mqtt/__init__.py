"""The gateway for MQTT 3.1.1 and 5.0.

`codec` has the packets as bytes; `topics` and `messages` what they say in our own words; `gateway.mqtt.delivering` who
gets a message; `gateway.mqtt.clients.client` what a connection is, from its CONNECT to its end.
"""
