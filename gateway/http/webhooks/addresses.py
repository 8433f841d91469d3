"""Which addresses a webhook may reach: those of the public network, and those that the operator allows.

Who may configure a webhook may not be somebody who may reach what the node can: its own ports, its neighbours, the
metadata service of a cloud. So the address is judged that is connected to, after its name was resolved; one that a URL
names itself is refused before that, when the webhook is made.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: The one name that stands for the same everywhere (RFC 6761).
LOOPBACK: Final = {"localhost": ("127.0.0.1", "::1")}
#: What of IPv6 is given to the public; all else is of a host or a site, stands for addresses of IPv4, or is nobody's.
#: Which ranges are not public Python knows in part, of newer ones in newer versions.
PUBLIC: Final = ip_network("2000::/3")
#: Of protocols (RFC 6890), and of examples (RFC 9637).
NOT_PUBLIC: Final = (ip_network("192.0.0.0/24"), ip_network("3fff::/20"))
#: 64:ff9b::/96: what a translator (NAT64) sends on to the IPv4 address in the last 32 bits.
TRANSLATED: Final = ip_network("64:ff9b::/96")


def may_reach(address: str, allowed: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether a webhook may connect to this address, which is a number and not a name."""
    return _is_public(behind(ip_address(address))) or is_allowed(address, allowed)


def may_name(host: str, allowed: Collection[IPv4Network | IPv6Network]) -> bool:
    """Whether the URL of a webhook may have this host: any name but `localhost`, for its address is judged later."""
    try:
        return any(may_reach(address, allowed) for address in LOOPBACK.get(host.rstrip(".").lower(), (host,)))
    except ValueError:
        return True


def _is_public(target: IPv4Address | IPv6Address) -> bool:
    if not target.is_global or target.is_multicast or any(target in network for network in NOT_PUBLIC):
        return False
    return target.version == 4 or target in PUBLIC


def is_allowed(address: str, allowed: Iterable[IPv4Network | IPv6Network]) -> bool:
    """Whether the operator allows this address, public or not."""
    target = behind(ip_address(address))
    return any(target in network for network in allowed)


def behind(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that one of IPv6 stands for, or itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
