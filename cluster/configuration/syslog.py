"""What the configuration may name as a target of syslog; `cluster.controller.syslog` sends there."""

from __future__ import annotations

import re
from typing import Final

UDP_PORT: Final = 514
UDP: Final = re.compile(r"udp://(\[(?P<v6>[^\]]+)\]|(?P<host>[^/:\[\]]+))(:(?P<port>\d{1,5}))?/?")
UNIX: Final = re.compile(r"unix://(?P<path>/.+)")


def fault_of(target: str) -> str:
    """Say why a target is none; nothing if it is one, or empty."""
    udp = UDP.fullmatch(target)
    if target and not UNIX.fullmatch(target) and (udp is None or int(udp["port"] or UDP_PORT) > 65_535):
        return f"{target!r} is no target: write udp://HOST:PORT or unix:///PATH, for instance unix:///dev/log"
    return ""
