"""One MQTT connection as a state machine: packets in; bytes, and what is wanted of the node, out. No socket, no clock.

`client` says what each packet does and when it may come; `connecting` judges a CONNECT and writes its answer,
`publishing` and `subscribing` are what their packets do; `reasons` says our error codes in MQTT's, `rules` what a
client may break that its bytes alone do not show, `keepalive` when it was silent too long. `settings` is what may be
said differently: by operators, and by what is built. `host` is what all of it wants of the process.
"""
