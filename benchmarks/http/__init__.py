"""Messages over HTTP at full speed, beside MQTT at the same node.

`suite` runs it, `client` is the process that posts.
"""
