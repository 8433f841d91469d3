"""What a process is told of the standby at its start, whether it has one or not: so nothing here needs TLS."""

from __future__ import annotations

import msgspec


class StandbySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the standby is, and what shows it who we are: the supervisor writes it for each process with a store."""

    #: Where the other host listens for it: `tls://HOST:PORT`, or `tcp://` on loopback.
    peer: str
    node: str
    data_id: str
    secret: str
    #: What encrypts the connection: `ca_file`, `cert_file`, `key_file`; an empty path stands for none.
    tls_files: dict[str, str] = {}
    server_name: str = ""
