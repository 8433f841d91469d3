"""Connections of links over real sockets, against the door of a router: ipc, tcp and tls behave the same."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import pytest

from angarium import errors
from angarium_server.connections import names, outgoing
from angarium_server.connections.door import Door, DoorLimits
from angarium_server.connections.encryption import Encryption, LinkFiles, Trust
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.names import Names
from angarium_server.connections.outgoing import Connection
from angarium_server.watch import Watch
from tests.integration.certificates import Authority, Pair

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from angarium.errors import AngariumError

LONG_S = 10.0
#: The name that the certificate of the router has: that of a node, and no address.
NODE = "berlin-1"
TRUST = Trust(NODE)
PLAIN = LinkFiles()


class World:
    """A door and connections to it in one loop, as two processes would have them in two."""

    def __init__(self, files: LinkFiles = PLAIN, unsent_bytes: int = 64 << 20) -> None:
        self.watch = Watch()
        self.names = Names(self.watch)
        self.encryption = Encryption(files)
        self.lines: list[Line] = []
        self.messages: list[tuple[bytes, list[bytes]]] = []
        self.lost: list[bytes] = []
        self.refused: list[str] = []
        limits = DoorLimits(
            framing=FramingLimits(64 << 20, 64 << 20),
            unsent_bytes=unsent_bytes,
            login_s=5.0,
            unauthenticated=20,
            unauthenticated_per_network=20,
        )
        self.door = Door(
            self.watch,
            limits,
            self._message,
            lambda identity, _reason, _now: self.lost.append(identity),
            lambda _identity, reason, _now: self.refused.append(reason),
            lambda reason, _now: self.refused.append(reason),
            lambda _network, _now: True,
        )
        #: Whether the router takes what comes.
        self.is_awake = True

    def _message(self, peer: object, frames: list[bytes], _now: float) -> None:
        identity: bytes = peer.id  # type: ignore[attr-defined]
        self.messages.append((identity, frames))
        self.door.admit(identity)

    def line(self, url: str, trust: Trust = TRUST) -> Line:
        self.lines.append(Line(self, url, trust))
        return self.lines[-1]

    def turn(self, seconds: float = 0.01) -> None:
        now = time.monotonic()
        waits = [line.connection.wake_at for line in self.lines]
        due = min(waits, default=now + seconds) - now
        rest = self.door.read_rest() if self.is_awake else False
        self.watch.wait(0.0 if rest else max(0.0, min(seconds, due)))
        now = time.monotonic()
        for line in self.lines:
            line.connection.tick(now)
            line.connection.validate()
        self.door.tick(now)
        self.door.flush()

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            self.turn()

    def close(self) -> None:
        for line in self.lines:
            line.connection.close(deque())
        self.door.close(0.1)
        self.until(lambda: all(line.connection.is_gone for line in self.lines), "the connections are gone")
        self.watch.close()


class Line:
    """One connection, and what it told."""

    def __init__(self, world: World, url: str, trust: Trust) -> None:
        self.got: list[list[bytes]] = []
        self.ends: list[AngariumError] = []
        self.outgoing: deque[list[bytes]] = deque()
        tls = world.encryption.for_address(url, trust)
        self.connection = Connection(
            world.watch, world.names, url, tls, self._message, self._drained, self._lost
        )

    def _message(self, frames: list[bytes], _now: float) -> None:
        assert not self.ends, "a message after the end"
        self.got.append(frames)

    def _drained(self) -> None:
        self.connection.send(self.outgoing)

    def _lost(self, error: AngariumError, _now: float) -> None:
        self.ends.append(error)

    def send(self, *frames: bytes) -> None:
        self.outgoing.append(list(frames))
        self.connection.send(self.outgoing)


class Site(NamedTuple):
    """Where a door listens, and what is needed to come in."""

    url: str
    server: ssl.SSLContext | None
    files: LinkFiles


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("link") / "ours")


@pytest.fixture(scope="module")
def node(authority: Authority) -> Pair:
    return authority.issue("node", f"DNS:{NODE}")


@pytest.fixture(params=["ipc", "tcp", "tls"])
def site(request: pytest.FixtureRequest, tmp_path: Path, authority: Authority, node: Pair) -> Site:
    if request.param == "tls":
        return Site("tls://127.0.0.1:0", node.server_context(), LinkFiles(ca_file=str(authority.cert)))
    url = f"ipc://{tmp_path}/door" if request.param == "ipc" else "tcp://127.0.0.1:0"
    return Site(url, None, LinkFiles())


@contextlib.contextmanager
def opened(site: Site) -> Iterator[tuple[World, str]]:
    world = World(site.files)
    try:
        yield world, world.door.listen(site.url, site.server)
    finally:
        world.close()


def hello(world: World, line: Line) -> bytes:
    """Say something first, and give by what the door knows the connection."""
    count = len(world.messages)
    line.send(b"H", b"")
    world.until(lambda: len(world.messages) > count, "a message came")
    assert world.messages[-1][1] == [b"H", b""]
    return world.messages[-1][0]


def test_messages_cross_in_order_both_ways(site: Site) -> None:
    with opened(site) as (world, url):
        line = world.line(url)
        identity = hello(world, line)
        sent = [[b"D", b"%d" % number, bytes(number * 37 % 3_000)] for number in range(3_000)]
        sent += [[b"D", b"large", os.urandom(3_000_000)], [b"D"], [b"D", b"", b""]]
        sent.append([b"D", *[b"batch %d" % number for number in range(250)]])
        for frames in sent:
            line.send(*frames)
            world.door.send(identity, frames)
        world.until(lambda: len(world.messages) == 1 + len(sent), "all came to the router")
        world.until(lambda: len(line.got) == len(sent), "all came to the link")
        assert [frames for _, frames in world.messages[1:]] == sent
        assert line.got == sent
        assert not line.ends


def test_what_the_socket_does_not_take_is_sent_when_there_is_room(site: Site) -> None:
    with opened(site) as (world, url):
        line = world.line(url)
        hello(world, line)
        peer = next(iter(world.door._connections.values()))
        world.watch.remove(peer.descriptor)  # it reads no more
        sent = [[b"D", os.urandom(200_000), b"%d" % number] for number in range(100)]
        for frames in sent:
            line.send(*frames)
        for _ in range(20):
            world.turn(0.001)
        assert len(line.outgoing) > 10  # 20 MB fit nowhere, and nothing was taken from the session in vain
        world.watch.add(peer.descriptor, lambda: world.door._serve(peer))
        world.until(lambda: len(world.messages) == 1 + len(sent), "all came")
        assert [frames for _, frames in world.messages[1:]] == sent


def test_the_end_comes_behind_everything_that_came_before_it(site: Site) -> None:
    with opened(site) as (world, url):
        line = world.line(url)
        identity = hello(world, line)
        for number in range(5_000):
            world.door.send(identity, [b"D", b"%d" % number])
        world.door.finish(identity, time.monotonic())
        world.until(lambda: line.ends, "the end")
        assert len(line.got) == 5_000
        assert [error.code for error in line.ends] == [errors.NOT_CONNECTED]
        assert line.connection.is_gone


def test_an_end_is_noticed_at_once(site: Site) -> None:
    with opened(site) as (world, url):
        line = world.line(url)
        hello(world, line)
        started = time.monotonic()
        world.door._drop(next(iter(world.door._connections.values())))
        world.until(lambda: line.ends, "the end")
        assert time.monotonic() - started < 5.0


def test_what_was_sent_leaves_although_the_connection_is_closed_while_more_comes(site: Site) -> None:
    with opened(site) as (world, url):
        line = world.line(url)
        identity = hello(world, line)
        for number in range(500):
            world.door.send(identity, [b"D", bytes(10_000)])
            line.outgoing.append([b"P", b"%d" % number, bytes(1_000)])
        world.door.flush()
        line.send(b"BYE")
        line.connection.close(line.outgoing)
        before = len(line.got)
        world.until(lambda: world.messages[-1][1] == [b"BYE"], "the goodbye")
        assert len(world.messages) == 502
        world.until(lambda: identity in world.lost, "the router hears of the end")
        world.until(lambda: line.connection.is_gone, "nothing is left")
        assert len(line.got) == before
        assert not line.ends


def test_who_does_not_read_after_our_goodbye_is_waited_for_a_while_only(site: Site) -> None:
    with opened(site) as (world, url):
        line = world.line(url)
        hello(world, line)
        peer = next(iter(world.door._connections.values()))
        world.watch.remove(peer.descriptor)
        started = time.monotonic()
        line.connection.close(deque())
        world.until(lambda: line.connection.is_gone, "nothing is left")
        assert time.monotonic() - started > outgoing.LINGER_S * 0.9
        world.watch.add(peer.descriptor, lambda: world.door._serve(peer))


def test_others_get_their_turn_while_one_connection_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    url = world.door.listen("tcp://127.0.0.1:0")
    busy, quiet = world.line(url), world.line(url)
    identity, other = hello(world, busy), hello(world, quiet)
    for _ in range(4 * outgoing.DRAIN_MAX):
        world.door.send(identity, [b"D"])
    world.door.send(other, [b"D"])
    world.door.flush()
    time.sleep(0.05)
    world.turn()
    assert quiet.got
    assert 0 < len(busy.got) <= 2 * outgoing.DRAIN_MAX  # once for the signal, once for the turn
    world.until(lambda: len(busy.got) == 4 * outgoing.DRAIN_MAX, "the rest")
    world.close()


class TestWithoutANeighbour:
    @pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "ipc:///nowhere/at/all", "tcp://[::1]:1"])
    def test_nobody_answers(self, url: str) -> None:
        world = World()
        line = world.line(url)
        world.until(lambda: line.ends, "the end")
        assert [error.code for error in line.ends] == [errors.CONNECT_FAILED]
        assert url in line.ends[0].detail
        world.close()

    def test_an_address_that_is_none(self) -> None:
        world = World()
        with pytest.raises(errors.InvalidRequestError):
            world.line("tcp://nowhere")
        world.close()

    def test_a_host_that_never_answers_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outgoing, "CONNECT_S", 0.3)
        with socket.socket() as full:
            # One waits to be accepted, so the next one's connection is not answered.
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            waiting = [socket.socket() for _ in range(3)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            world = World()
            line = world.line(f"tcp://127.0.0.1:{full.getsockname()[1]}")
            world.until(lambda: line.ends, "the end")
            assert [error.code for error in line.ends] == [errors.CONNECT_FAILED]
            world.close()
            for one in waiting:
                one.close()

    @pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
    def test_who_answers_is_no_router(self, answer: bytes) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            world = World()
            line = world.line(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            stranger, _ = server.accept()
            with stranger:
                stranger.sendall(answer)
                stranger.shutdown(socket.SHUT_WR)
                world.until(lambda: line.ends, "the end")
            assert [error.code for error in line.ends] == [errors.HANDSHAKE_FAILED]
            world.close()

    def test_a_node_that_ends_before_it_said_a_word_is_away(self) -> None:
        """One that hangs is killed: who has connected to it meanwhile is not told to look at the address."""
        world = World()
        with socket.create_server(("127.0.0.1", 0)) as server:
            line = world.line(f"tcp://127.0.0.1:{server.getsockname()[1]}")
            for _ in range(5):
                world.turn()
            assert not line.ends
        world.until(lambda: line.ends, "the end")
        assert [error.code for error in line.ends] == [errors.CONNECT_FAILED]
        world.close()

    def test_nothing_is_told_after_it_was_closed(self) -> None:
        world = World()
        line = world.line("tcp://127.0.0.1:1")
        line.connection.close(deque())
        for _ in range(5):
            world.turn()
        assert not line.ends
        assert line.connection.is_gone
        world.close()


class TestNames:
    def test_a_name_is_looked_up(self) -> None:
        world = World()
        port = world.door.listen("tcp://127.0.0.1:0").rpartition(":")[2]
        hello(world, world.line(f"tcp://localhost:{port}"))
        world.close()

    def test_a_name_that_nobody_knows(self) -> None:
        world = World()
        line = world.line("tcp://there-is-no-such-host.invalid:55555")
        world.until(lambda: line.ends, "the end")
        assert [error.code for error in line.ends] == [errors.CONNECT_FAILED]
        assert "not known" in line.ends[0].detail
        world.close()

    def test_a_look_up_that_takes_long_holds_up_nobody_and_is_made_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on, asked = threading.Event(), []
        known = names.places_of

        def slowly(host: str, port: int, flags: int = 0) -> list[names.Place]:
            asked.append(host)
            assert go_on.wait(LONG_S)
            return known("127.0.0.1", port, flags)

        monkeypatch.setattr(names, "places_of", slowly)
        world = World()
        url = world.door.listen("tcp://127.0.0.1:0")
        port = url.rpartition(":")[2]
        slow = [world.line(f"tcp://slow.example:{port}") for _ in range(3)]
        slow[0].connection.close(deque())
        started = time.monotonic()
        hello(world, world.line(url))
        assert time.monotonic() - started < LONG_S / 2
        go_on.set()
        for line in slow[1:]:
            hello(world, line)
        assert asked == ["slow.example"]
        assert slow[0].connection.is_gone
        world.close()

    def test_each_address_of_a_name_is_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World()
        port = int(world.door.listen("tcp://127.0.0.1:0").rpartition(":")[2])
        places: list[names.Place] = [
            (socket.AF_INET6, ("::1", 1, 0, 0)),
            (socket.AF_INET, ("127.0.0.1", 1)),
            (socket.AF_INET, ("127.0.0.1", port)),
        ]
        monkeypatch.setattr(names, "places_of", lambda *_: places)
        hello(world, world.line(f"tcp://many.example:{port}"))
        world.close()


class TestTls:
    def refused(
        self, server: Pair | None, files: LinkFiles, trust: Trust = TRUST, scheme: str = "tls"
    ) -> AngariumError:
        """Give the error with which a connection ends that must not come about."""
        world = World(files)
        context = None if server is None else server.server_context()
        url = world.door.listen("tcp://127.0.0.1:0" if server is None else "tls://127.0.0.1:0", context)
        line = world.line(f"{scheme}://{url.partition('://')[2]}", trust)
        line.outgoing.append([b"a secret"])
        world.until(lambda: line.ends, "the end")
        assert not world.messages
        world.close()
        (error,) = line.ends
        return error

    def test_another_authority(self, tmp_path: Path, node: Pair) -> None:
        error = self.refused(node, LinkFiles(ca_file=str(Authority(tmp_path / "other").cert)))
        assert error.code == errors.TLS_FAILED
        assert "authority" in error.detail
        assert "ca_file" in error.advice

    def test_authorities_of_the_system(self, node: Pair) -> None:
        assert self.refused(node, LinkFiles()).code == errors.TLS_FAILED

    def test_another_name(self, authority: Authority, node: Pair) -> None:
        files = LinkFiles(ca_file=str(authority.cert))
        error = self.refused(node, files, Trust("berlin-2"))
        assert error.code == errors.TLS_FAILED
        assert "'berlin-2'" in error.detail
        # Without a name the host of the address counts, which this certificate does not have.
        assert "'127.0.0.1'" in self.refused(node, files, Trust()).detail

    def test_a_certificate_that_has_expired(self, authority: Authority) -> None:
        old = authority.issue("old", f"DNS:{NODE}", until="20210101000000Z")
        error = self.refused(old, LinkFiles(ca_file=str(authority.cert)))
        assert error.code == errors.TLS_FAILED
        assert "expired" in error.detail

    def test_one_side_encrypts_and_the_other_does_not(self, authority: Authority, node: Pair) -> None:
        files = LinkFiles(ca_file=str(authority.cert))
        codes = (errors.TLS_FAILED, errors.HANDSHAKE_FAILED)
        assert self.refused(None, files).code in codes
        error = self.refused(node, files, scheme="tcp")
        assert error.code in codes
        assert "tls://" in str(error)

    def test_authorities_of_a_bridge_count_instead_of_those_of_the_node(
        self, tmp_path: Path, authority: Authority, node: Pair
    ) -> None:
        other = Authority(tmp_path / "other").cert
        pem = authority.cert.read_text()
        with opened(Site("tls://127.0.0.1:0", node.server_context(), LinkFiles(ca_file=str(other)))) as (
            world,
            url,
        ):
            hello(world, world.line(url, Trust(NODE, pem)))
        error = self.refused(node, LinkFiles(ca_file=str(authority.cert)), Trust(NODE, other.read_text()))
        assert error.code == errors.TLS_FAILED

    def test_the_node_shows_its_certificate_where_it_is_demanded(
        self, tmp_path: Path, authority: Authority, node: Pair
    ) -> None:
        context = node.server_context(clients_of=authority.cert)
        trusted = LinkFiles(ca_file=str(authority.cert), cert_file=str(node.cert), key_file=str(node.key))
        with opened(Site("tls://127.0.0.1:0", context, trusted)) as (world, url):
            hello(world, world.line(url))
            world.encryption = Encryption(LinkFiles(ca_file=str(authority.cert)))
            line = world.line(url)
            world.until(lambda: line.ends, "the end")
            assert line.ends[0].code in (errors.TLS_FAILED, errors.HANDSHAKE_FAILED)

    def test_files_are_read_again_for_the_next_connection(
        self, tmp_path: Path, authority: Authority, node: Pair
    ) -> None:
        later = Authority(tmp_path / "later")
        renewed = later.issue("node", f"DNS:{NODE}")
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(authority.cert.read_bytes())
        site = Site("tls://127.0.0.1:0", node.server_context(), LinkFiles(ca_file=str(trusted)))
        with opened(site) as (world, url):
            first = world.line(url)
            hello(world, first)
            world.door.encrypt_with(renewed.server_context())
            refused = world.line(url)
            world.until(lambda: refused.ends, "the end")
            trusted.write_bytes(b"damaged")
            with pytest.raises(errors.AngariumError, match=r"trusted\.pem") as raised:
                world.line(url)
            assert raised.value.code == errors.TLS_FAILED
            trusted.write_bytes(authority.cert.read_bytes() + later.cert.read_bytes())
            hello(world, world.line(url))
            hello(world, first)  # which nothing of this has touched

    @pytest.mark.parametrize("name", ["n" * 64, "a..b"])
    def test_a_name_that_no_certificate_can_have(self, name: str, authority: Authority) -> None:
        encryption = Encryption(LinkFiles(ca_file=str(authority.cert)))
        with pytest.raises(errors.AngariumError, match="server_name") as raised:
            encryption.for_address("tls://127.0.0.1:1", Trust(name))
        assert raised.value.code == errors.TLS_FAILED
