"""How frames travel between client and router: `stream` over a socket, `secure` over one of libzmq with CURVE."""
