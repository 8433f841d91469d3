"""Many quiet connections, ours and the peers': lone messages, connects, memory, reconnects.

`suite` runs it, `plan` says which rows there are, `group` is the process that holds some of the clients, and one module
for each broker connects them. `closed_loop` costs one lone message of a raw client at a time.
"""
