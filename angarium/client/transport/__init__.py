"""How frames travel between client and router: `plain` over a socket of the system, `secure` over one of libzmq."""
