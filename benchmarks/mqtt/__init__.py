"""Messages of MQTT at full speed and retained ones, ours and the peers', with one and the same client for all brokers.

`suite` runs it, `plan` says which rows there are, `client` is the process that publishes or subscribes, `packets` are
what it says to the broker.
"""
