"""How a second host gets what is committed here.

`storage.shipping.groups` numbers what is committed and knows what a spool lacks, `storage.shipping.shipping` decides at
the primary which groups count, `storage.shipping.receiving` at the standby what is to be written.
"""
