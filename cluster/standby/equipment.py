"""What a host has for each of its lives: the door for a primary, the desk of a node, the keeper, and the node itself.

It decides nothing: what is made when, and let go of, is in `life`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from angarium.errors import AngariumError
from angarium_server import launch
from angarium_server.connections.names import Names
from angarium_server.connections.tls import make_context
from angarium_server.process import KEEPER_PID_VARIABLE, KEEPER_VARIABLE
from angarium_server.watch import Watch
from cluster.configuration.config import read_password_file
from cluster.controller.health.checks import Check, Health
from cluster.controller.health.pages import page
from cluster.controller.health.server import HealthServer
from cluster.data.data_dir import RuntimeDirectory
from cluster.data.node_file import HOST_STATUS_FILE
from cluster.standby import files
from cluster.standby.desk import Desk, address_in
from cluster.standby.files_line import FilesLine
from cluster.standby.followers import Followers, Terms
from cluster.standby.noted import Noted
from cluster.standby.pair.member import Member, Role
from cluster.standby.pair.outside import Holder
from cluster.standby.pair.settings import shipping_settings
from cluster.standby.places import damages
from cluster.standby.stores import clock
from cluster.standby.stores.keeper import Keeper
from cluster.standby.stores.opening import open_store
from router.ground.config import tls_files

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from cluster.admin.answers import HostStatus
    from cluster.configuration.config import NodeConfig
    from cluster.controller.health.http import Answer, Request
    from cluster.standby.stores.disk import Probe
    from cluster.standby.stores.keeper import Told

#: A primary whose lease has been over for so many leases, because no outside store answers it, ends: the other host may
#: be the primary, and gets no standby before this one listens.
AWAY_LEASES: Final = 3.0

_log = logging.getLogger("standby")


class Equipment:
    """Of one host, from its start to its end."""

    def __init__(self, data: Path, config: NodeConfig, earlier: str) -> None:
        """Make what lasts; `earlier` is the runtime directory of the start before.

        Raises:
            AngariumError: the section cannot be used (40017).
        """
        self._config = config
        self._section = config.standby
        self.name = self._section.host or socket.gethostname()
        self._data = data
        self._secret = read_password_file(self._section.secret_file)
        self.watch = Watch()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._names = Names(self.watch)
        self._runtime = RuntimeDirectory(earlier=earlier)
        self.noted = Noted(data)
        self._map_bytes = config.spool.map_gb * 1_000_000_000

    @property
    def lease_s(self) -> float:
        """Give how long a lease is."""
        return self._section.lease_seconds

    @property
    def directory(self) -> Path:
        """Give the runtime directory."""
        return self._runtime.path

    def close(self) -> None:
        """Let go of it all."""
        (self._data / HOST_STATUS_FILE).unlink(missing_ok=True)
        self._context.destroy(linger=0)
        self._runtime.__exit__()

    @property
    def _promised(self) -> int:
        """Give the epoch before which there is no primary any more; only the operator may go back."""
        return 0 if self._section.store == "manual" else self.noted.epoch

    @property
    def store(self) -> str:
        """Give the kind of the outside store."""
        return self._section.store

    @property
    def learns_of_lack(self) -> bool:
        """Whether it hears that the other host went on without it: the operator does not tell it."""
        return self._section.store != "manual" or self._section.required

    def look_for_damage(self) -> None:
        """Find out whether this host has what it is taken for: nobody has its stores open yet."""
        for damage in damages(self._data, files.Stores(self._data).names(), self._map_bytes):
            text = (
                "%s. This host takes nothing over from one that has everything, and is brought it by that one"
            )
            _log.error(text, damage)
            self.noted.note_lacking()

    def followers(
        self, epoch: Callable[[], int], left: Callable[[], None], lacks: Callable[[], bool]
    ) -> Followers:
        """Give what listens for a primary: with the epoch that was seen last, and who is told what; see there.

        Raises:
            AngariumError: it cannot listen where it should (40017, 40902).
        """
        terms = Terms(
            self._config.node.name,
            self.name,
            self._secret,
            self._data,
            self._map_bytes,
        )
        followers = Followers(self.watch, terms, lambda: max(self._promised, epoch()), left, lacks)
        followers.listen(self._section.listen, self.encryption())
        return followers

    def encryption(self) -> ssl.SSLContext | None:
        """Give what encrypts the connections of a primary, as its files are now."""
        is_encrypted = self._section.listen.startswith("tls://")
        return make_context(tls_files(self._config.router)) if is_encrypted else None

    def probes(self, primary: Callable[[], str]) -> HealthServer | None:
        """Give what answers probes while no node runs here that does; None: an address is taken."""

        def answer(request: Request) -> Answer:
            ready = Check("standby", ok=False, text=f"host {self.name} follows {primary() or 'nobody'}")
            alive = [Check("host", ok=True)]
            health = Health(node=self._config.node.name, live=alive, started=alive, ready=[ready])
            return page(request, health, lambda: "")

        try:
            return HealthServer(self.watch, self._config.health.listen, answer)
        except AngariumError as error:
            _log.warning("nobody answers probes here: %s", error)
            return None

    def desk(self) -> Desk:
        """Give what the processes of a node obey."""
        desk = Desk(self._context, self._runtime.path)
        self.watch.add(desk.socket, lambda: desk.receive(time.monotonic()))
        return desk

    def end_desk(self, desk: Desk) -> None:
        """Let go of it."""
        self.watch.remove(desk.socket)
        desk.close()

    def files_line(self) -> FilesLine:
        """Give what sends the files beside the stores."""
        settings = shipping_settings(self._config, files.data_id_of(self._data))
        return FilesLine(self.watch, self._names, settings, self._data)

    def keeper(
        self, probe: Probe, told: Callable[[Told], None]
    ) -> tuple[Member, Keeper, Coroutine[Any, Any, None]]:
        """Give who asks the outside store for this host, anew for each life, and what ends that."""
        section = self._section
        me = Holder(self.name, secrets.token_hex(8))
        store = open_store(section, self._config.node.name, me, self._data)
        member = Member(
            me,
            may_found=self._may_found(),
            may_be_alone=not section.required,
            known_epoch=self._promised,
            is_new=self.noted.is_new,
        )
        return member, Keeper(member, store, probe, told, section.lease_seconds), store.close()

    def _may_found(self) -> bool:
        """Tell whether this host begins if the outside store knows nothing: not with what it copied from another."""
        return self.noted.role != Role.CANDIDATE.value

    def is_away(self, acts_until: float) -> bool:
        """Tell whether a lease has been over for so long that nobody should wait for the outside store."""
        return clock.now() > acts_until + AWAY_LEASES * self._section.lease_seconds

    def start_node(self) -> subprocess.Popen[bytes]:
        """Start the node with the command that started this host; it waits for the word, and touches no data."""
        environment = {
            **launch.environment(),
            KEEPER_VARIABLE: address_in(self._runtime.path),
            KEEPER_PID_VARIABLE: str(os.getpid()),
        }
        command = launch.command(*sys.argv[1:])
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, process_group=0)

    def write_status(self, status: HostStatus) -> None:
        """Have others see it; the newest is enough."""
        place = self._data / HOST_STATUS_FILE
        fresh = place.with_name(f".{HOST_STATUS_FILE}")
        with contextlib.suppress(OSError):
            fresh.write_bytes(msgspec.json.encode(status))
            fresh.replace(place)
