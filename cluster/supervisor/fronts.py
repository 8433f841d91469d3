"""The addresses of a node beside those of its router: named by `angarium up`, by the file, or at an earlier start.

Each front is a section of the configuration with `listen`, an option of `angarium up` of the same name, and two fields
of `node.json`: the ports that were chosen, and what the option named last. Several processes may share a port, so the
supervisor holds it (`cluster.supervisor.ports`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium_server.connections.addresses import has_open_port, is_loopback
from cluster.configuration import listening, mqtt
from cluster.configuration.config import faults_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cluster.configuration.config import NodeConfig
    from cluster.data.node_file import NodeFile
    from cluster.supervisor.ports import Ports

#: What the option says to a node that is to have no such address, and to forget those of earlier starts.
NONE: Final = ("none",)


@dataclass(frozen=True, slots=True)
class Front:
    """Addresses of one kind, as their section has them."""

    #: Of the section, of the option, and of the field of `node.json`.
    name: str
    #: Gives the address of an entry as it is bound, tcp:// or tls://.
    url_of: Callable[[str], str]
    #: Gives an entry with the port of such an address.
    with_port: Callable[[str, str], str]

    def listen(self, config: NodeConfig) -> list[str]:
        """Give the entries of the configuration."""
        entries: list[str] = getattr(config, self.name).listen
        return entries

    def with_listen(self, config: NodeConfig, entries: Iterable[str]) -> NodeConfig:
        """Give the configuration with these entries."""
        section = msgspec.structs.replace(getattr(config, self.name), listen=list(entries))
        return msgspec.structs.replace(config, **{self.name: section})

    def with_named(self, config: NodeConfig, named: tuple[str, ...]) -> NodeConfig:
        """Give the configuration with what the option named, if anything, instead of what the file says."""
        return self.with_listen(config, () if named == NONE else named) if named else config

    def asked(self, named: tuple[str, ...], config: NodeConfig, node: NodeFile) -> list[str]:
        """Give the entries asked for: who names none means those that the option named last.

        Only this host may reach those; where they have lost their certificate there are none.
        """
        kept = self._kept(named, config, node)
        if not kept:
            return self.listen(config)
        return [] if self._faults(config, kept) else kept

    def left_out(
        self, named: tuple[str, ...], config: NodeConfig, node: NodeFile
    ) -> tuple[list[str], list[str]]:
        """Give the entries of an earlier start that cannot be had now, and why; both are empty if there are none."""
        kept = self._kept(named, config, node)
        faults = self._faults(config, kept) if kept else []
        return (kept, faults) if faults else ([], [])

    def _kept(self, named: tuple[str, ...], config: NodeConfig, node: NodeFile) -> list[str]:
        """Give the entries that the option named last, if neither it nor the file names others and they are kept."""
        kept: list[str] = getattr(node, f"{self.name}_named")
        if named or self.listen(config) or not all(is_loopback(self.url_of(entry)) for entry in kept):
            return []
        return kept

    def _faults(self, config: NodeConfig, entries: list[str]) -> list[str]:
        return faults_of(self.with_listen(config, entries))  # reads every certificate

    def fixed(self, entries: Iterable[str], node: NodeFile) -> list[str]:
        """Give entries with the ports to bind: an open one is the one that was chosen for it last."""
        known: dict[str, str] = getattr(node, self.name)
        return [known.get(entry, entry) if has_open_port(self.url_of(entry)) else entry for entry in entries]


MQTT: Final = Front("mqtt", lambda entry: mqtt.address_of(entry).url, mqtt.with_port)
HTTP: Final = Front("http", listening.url_of, listening.with_port)
MANAGEMENT: Final = Front("management", listening.url_of, listening.with_port)
FRONTS: Final = (MQTT, HTTP, MANAGEMENT)


def urls_to_bind(config: NodeConfig, named: dict[str, tuple[str, ...]], node: NodeFile) -> list[str]:
    """Give every address of the fronts that a start would bind."""
    return [
        front.url_of(entry)
        for front in FRONTS
        for entry in front.fixed(front.asked(named[front.name], config, node), node)
    ]


def left_out(config: NodeConfig, named: dict[str, tuple[str, ...]], node: NodeFile) -> list[str]:
    """Give a sentence for each front that is left out although an earlier start had it; a later one may again."""
    found = [(front.name, *front.left_out(named[front.name], config, node)) for front in FRONTS]
    return [
        f"--{name} {' '.join(entries)} of an earlier start is left out: {faults[0]}"
        for name, entries, faults in found
        if entries
    ]


def held(
    config: NodeConfig, named: dict[str, tuple[str, ...]], node: NodeFile, ports: Ports
) -> tuple[NodeConfig, dict[str, Any]]:
    """Hold every address of the fronts; give the configuration with them, and what `node.json` is to keep.

    Raises:
        InvalidRequestError: this host has no such address (40017).
        ConflictError: somebody has the port (40902).
    """
    kept: dict[str, Any] = {}
    for front in FRONTS:
        asked = front.asked(named[front.name], config, node)
        is_of_file = bool(front.listen(config)) and not named[front.name]
        bound = [
            front.with_port(entry, ports.hold(front.url_of(entry))) for entry in front.fixed(asked, node)
        ]
        kept[front.name] = dict(zip(asked, bound, strict=True))
        left, _ = front.left_out(named[front.name], config, node)
        kept[f"{front.name}_named"] = [] if is_of_file else asked or left
        config = front.with_listen(config, bound)
    return config, kept
