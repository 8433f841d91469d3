"""Why a request by aiohttp got no answer, in words that show nothing: texts of its errors may hold what is secret."""

from __future__ import annotations

import aiohttp


def failure_of(error: Exception) -> str:
    """Say why there was no answer, by the kind of the error."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case aiohttp.ClientConnectorDNSError():
            return "the name of the host was not found"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not valid"
        case aiohttp.ClientSSLError():
            return "TLS failed"
        case aiohttp.ClientConnectorError():
            return "no connection"
    return "the connection failed"
