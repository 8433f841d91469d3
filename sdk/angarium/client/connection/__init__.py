"""A client's connection: how it is kept and comes back, what is asked over it, the tokens that it logs in with."""
