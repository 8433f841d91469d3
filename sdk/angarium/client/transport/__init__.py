"""How frames travel between client and router: `stream` is the socket, `zmtp` what is said, `tls` what encrypts it."""
