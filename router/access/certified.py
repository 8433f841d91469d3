"""Who a client is that has shown a certificate: the rule of `router.tls_username`.

The connection layer has checked that an authority of ours signed it and that it has not ended; here is only what it
says. Whoever the certificate names is in without a password, and is nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from angarium import errors
from angarium.errors import error_for

if TYPE_CHECKING:
    from angarium_server.connections.tls import Certificate
    from router.sessions.hello import Hello

#: What a client sends that says no username.
UNSAID: Final = "default"


def certified(hello: Hello, certificate: Certificate | None, part: str) -> Hello | None:
    """Give the login of the username that a certificate names; None if there is none, or no rule for it.

    Args:
        hello: what the client says of itself.
        certificate: what it has shown.
        part: the value of `router.tls_username`.

    Raises:
        UnauthorizedError: the certificate names nobody, or another one than the client (40105).
    """
    if certificate is None or not part:
        return None
    names = {
        "common-name": (certificate.common_name,),
        "dns": certificate.dns,
        "email": certificate.emails,
        "uri": certificate.uris,
    }[part]
    if not names or not names[0]:
        raise error_for(errors.CERTIFICATE_USERNAME, f"the certificate names no {part}")
    if hello.username not in (names[0], UNSAID):
        raise error_for(errors.CERTIFICATE_USERNAME, f"the certificate is not that of {hello.username!r}")
    return msgspec.structs.replace(hello, username=names[0], password=None)
