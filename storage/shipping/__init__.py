"""How a second host gets what is committed to a store of the first one."""
