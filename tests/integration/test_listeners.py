"""Where a running node listens: where it was told to, and for its own processes in its runtime directory."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil
import pytest
import zmq

from angarium_server.testing import Node
from cluster.data.node_file import read_node_file
from cluster.security.authority import create_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """
[router]
listen = ["tcp://127.0.0.1:0", "tls://127.0.0.1:0", "ipc://{socket}"]
tls_cert_file = "node.pem"
tls_key_file = "node.key"

[admin]
listen = ["tls://127.0.0.1:0"]
tls_client_ca_file = "authority.pem"
operators = ["operator"]

[health]
listen = ["tcp://127.0.0.1:0"]

[[bridges]]
name = "own"
remote_vpn = "other"
remote_subscriptions = ["a/>"]

[vpn.other]
"""
#: A socket of the system that listens has this flag in /proc/net/unix.
_ACCEPTS: Final = 0x10000
#: What a peer of ZMTP 1.0 sends: libzmq goes on with it, our door does not.
_OLD_ZMTP: Final = b"\x01\x00"
_LIMIT_S: Final = 5.0


class Running(NamedTuple):
    """A node, with all its processes and every kind of address."""

    node: Node
    processes: list[psutil.Process]
    #: The socket for clients of this host.
    ipc: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("listeners")
    create_certificate(folder / "node")
    file, ipc = folder / "node.toml", folder / "clients"
    file.write_text(CONFIG.format(socket=ipc))
    with Node(folder / "data", workers=2, listen=None, config=file) as node:
        node.wait_for("the bridge runs", lambda status: "bridge" in roles(status))
        supervisor = psutil.Process(node.pid)
        yield Running(node, [supervisor, *supervisor.children(recursive=True)], ipc)


def roles(status: dict[str, list[dict[str, str]]]) -> list[str]:
    return [row["role"] for row in status["processes"] if row["state"] == "ready"]


def told(running: Running) -> set[str]:
    """Give the addresses of TCP at which the node says that it listens: clients, operators, probes."""
    node = read_node_file(running.node.data)
    admin = re.findall(r"the admin API listens on (\S+)", running.node.output())
    urls = [url for url in (*node.urls, *admin, node.health) if not url.startswith("ipc:")]
    assert len(urls) == 4
    return {re.sub(r"^\w+://", "", url).rstrip("/") for url in urls}


def listening(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        for one in process.net_connections("inet"):
            assert one.type == socket.SOCK_STREAM, f"{process} has {one}"
            if one.status == psutil.CONN_LISTEN:
                found.add(f"{one.laddr.ip}:{one.laddr.port}")
    return found


def unix_listeners(processes: list[psutil.Process]) -> dict[str, int]:
    """Give the paths at which processes listen, with the process of each."""
    paths = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *path = line.split(maxsplit=7)
        if int(flags, 16) & _ACCEPTS:
            paths[f"socket:[{inode}]"] = path[0] if path else ""
    found = {}
    for process in processes:
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            target = str(descriptor.readlink())
            if target in paths:
                found[paths[target]] = process.pid
    return found


@pytest.mark.requirement("R231")
def test_a_node_listens_where_it_was_told_to_and_nowhere_else(running: Running) -> None:
    assert listening(running.processes) == told(running)


@pytest.mark.requirement("R231")
def test_its_own_processes_meet_in_the_runtime_directory(running: Running) -> None:
    runtime = read_node_file(running.node.data).runtime
    found = unix_listeners(running.processes)
    assert {path.removeprefix(f"{runtime}/") for path in found} == {
        *("supervisor", "control", "admin", "workers", "links"),
        str(running.ipc),
    }
    assert Path(runtime).stat().st_mode & 0o777 == 0o700


@pytest.mark.requirement("R231")
def test_libzmq_is_behind_no_address_that_a_stranger_reaches(running: Running) -> None:
    """It answers an old peer; whoever listens for us ends the connection."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as library:
        port = library.bind_to_random_port("tcp://127.0.0.1")
        assert goes_on(("127.0.0.1", port)), "the test knows libzmq when it sees it"
    node = read_node_file(running.node.data)
    admin = re.findall(r"the admin API listens on (\S+)", running.node.output())
    for url in (*node.urls, *admin):
        if not url.startswith("ipc:"):
            assert not goes_on(place_of(url), encrypted() if url.startswith("tls:") else None), url
    with urllib.request.urlopen(f"{node.health.rstrip('/')}/healthz", timeout=_LIMIT_S) as answer:
        assert answer.status == 200


def place_of(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


def encrypted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def goes_on(place: tuple[str, int], context: ssl.SSLContext | None = None) -> bool:
    """Tell whether a connection outlasts what an old peer says, as those of libzmq do for a long time."""
    made = socket.create_connection(place, _LIMIT_S)
    with made if context is None else context.wrap_socket(made) as connection:
        connection.settimeout(_LIMIT_S)
        try:
            connection.sendall(_OLD_ZMTP)
            while connection.recv(4096):
                pass
        except TimeoutError:
            return True
        except OSError:
            return False
    return False
