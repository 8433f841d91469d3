"""Hosts that join a cluster with one command, over TLS on loopback: real nodes, and the real command."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pytest

from angarium import blocking, errors
from angarium_server import launch
from angarium_server.testing import Node
from cluster.data.node_file import read_node_file
from cluster.join import stored, tokens
from cluster.join.client import JoinOptions, join
from cluster.security.authority import create_certificate
from tests.ports import free_port
from tests.waiting import expect_value, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from tests.command_server import CommandServer

DEADLINE_S = 30.0
CONFIG = """
[node]
name = "{name}"
[router]
listen = ["tcp://127.0.0.1:0", "tls://127.0.0.1:{port}"]
{more}
"""
Row = dict[str, Any]


def are_up(others: set[str], links: dict[str, Row]) -> bool:
    """Tell whether there are links with these nodes, and all are up."""
    return set(links) == others and all(row["state"] == "up" for row in links.values())


class Hosts:
    """Hosts by their names, each with a node or none; a context manager that stops them."""

    def __init__(self, folder: Path, commands: CommandServer) -> None:
        self.folder = folder
        self._commands = commands
        self.ports: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}

    def first(self, name: str = "a", *, with_key: bool = True) -> Node:
        """Start the first node of a cluster."""
        place = self.folder / f"keys-{name}"
        place.mkdir()
        issued = create_certificate(place / name, ["127.0.0.1"])
        if not with_key:
            (place / "authority.key").rename(self.folder / f"{name}.away")
        more = f'tls_cert_file = "{issued.cert_file}"\ntls_key_file = "{issued.key_file}"'
        return self.describe(name, more).start()

    def describe(self, name: str, more: str = "") -> Node:
        """Give the node of a host that is not started."""
        self.ports.setdefault(name, free_port())
        file = self.folder / f"{name}.toml"
        file.write_text(CONFIG.format(name=name, port=self.ports[name], more=more))
        self.nodes[name] = Node(self.folder / name, workers=1, listen=None, config=file)
        return self.nodes[name]

    def token(self, name: str, *options: str) -> Row:
        """Have a node make a token."""
        made: Row = json.loads(self.nodes[name].run("cluster", "token", *options, "--json"))
        return made

    def token_uses(self, name: str, text: str) -> int:
        """Give how many nodes a token has admitted."""
        lines = self.nodes[name].run("cluster", "token", "list", "--json").splitlines()
        wanted = tokens.read(text).id.hex()
        return next(int(row["uses"]) for row in map(json.loads, lines) if row["id"] == wanted)

    def url(self, name: str) -> str:
        return f"tls://127.0.0.1:{self.ports[name]}"

    def join(self, name: str, through: str, token: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Type the one command on a host; the token comes from the standard input."""
        node = self.nodes.get(name) or self.describe(name)
        command = ["up", "--detach", "--data", str(node.data), "--workers", "1"]
        command += [
            "--config",
            str(self.folder / f"{name}.toml"),
            "--join",
            self.url(through),
            "--token",
            "-",
        ]
        limited = f"error {errors.CONNECT_RATE_EXCEEDED}"
        deadline = time.monotonic() + DEADLINE_S
        while True:
            done = self._commands.run_text([*command, *more], launch.environment(), stdin=token)
            if limited not in done.stderr or time.monotonic() > deadline:
                return done
            time.sleep(0.2)  # joins of one address that fail are few in a second

    def joined(self, name: str, through: str) -> list[str]:
        """Join with a new token as the command does, and start the node; gives the warnings."""
        node = self.nodes.get(name) or self.describe(name)
        warnings: list[str] = []
        options = JoinOptions(
            url=self.url(through),
            token=self.token(through)["token"],
            data_dir=node.data,
            config_file=str(self.folder / f"{name}.toml"),
            on_warning=warnings.append,
        )
        join(options)
        node.start()
        return warnings

    def links(self, name: str) -> dict[str, Row]:
        lines = self.nodes[name].run("link", "list", "--json").splitlines()
        return {row["name"]: row for row in map(json.loads, lines)}

    def wait_links(self, *names: str) -> None:
        """Wait until these nodes have links with each other, and with nobody else, that are up and encrypted."""
        for name in names:
            found = wait_for(
                partial(self.links, name),
                partial(are_up, set(names) - {name}),
                f"links of {name}",
                more=self.nodes[name].output,
            )
            assert all(row["encrypted"] for row in found.values())

    def connect(self, name: str) -> blocking.Client:
        """Connect a client of the host itself."""
        urls = read_node_file(self.nodes[name].data).urls
        return blocking.connect(next(url for url in urls if url.startswith("tcp://")), timeout_s=10)

    def events(self, name: str, event: str) -> list[Row]:
        lines = self.nodes[name].run("events", "--json").splitlines()
        return [row for row in map(json.loads, lines) if row["event"] == event]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for node in self.nodes.values():
                stack.callback(node.stop)
                if (node.data / "node.json").exists():
                    stack.callback(node.run, "down")


@pytest.fixture
def hosts(tmp_path: Path, commands: CommandServer) -> Iterator[Hosts]:
    with Hosts(tmp_path, commands) as made:
        yield made


def crosses(publisher: blocking.Client, subscriber: blocking.Client, topic: str) -> None:
    """Publish on one node until a subscriber on another has it."""
    subscription = subscriber.subscribe(topic)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        publisher.publish(topic, b"across")
        publisher.flush()
        try:
            assert subscription.receive(0.05).payload == b"across"
        except errors.TimeoutExpiredError:
            continue
        return
    raise AssertionError(f"nothing came on {topic}")


@pytest.mark.requirement("R285")
def test_hosts_join_are_linked_with_all_others_and_leave(hosts: Hosts) -> None:
    hosts.first()
    made = hosts.token("a")
    assert made["addresses"] == [hosts.url("a")]
    done = hosts.join("b", "a", made["token"])
    assert done.returncode == 0, done.stderr
    hosts.wait_links("a", "b")
    with hosts.connect("a") as here, hosts.connect("b") as there:
        crosses(here, there, "to/b")
        crosses(there, here, "to/a")

    # The third one hears of the second, through whom it does not come, and has links on both sides with it as well.
    assert hosts.joined("c", "a") == []
    hosts.wait_links("a", "b", "c")
    with hosts.connect("b") as here, hosts.connect("c") as there:
        crosses(there, here, "from/c")
    assert json.loads(hosts.nodes["c"].run("cluster", "status", "--json"))["cluster"] == "angarium"

    # A later start needs nothing of it, and finds the cluster again.
    hosts.nodes["b"].run("down")
    hosts.nodes["b"].start()
    hosts.wait_links("a", "b", "c")

    hosts.nodes["c"].run("cluster", "leave")
    hosts.wait_links("a", "b")
    assert hosts.links("c") == {}
    assert not (hosts.nodes["c"].data / "cluster").exists()
    (left,) = hosts.nodes["c"].data.glob("left-*")
    assert left.stat().st_mode & 0o777 == 0o700
    expect_value(lambda: len(hosts.events("b", "SYSTEM_CLUSTER_LEFT")), 1, "events of who left")
    expect_value(lambda: len(hosts.events("a", "SYSTEM_CLUSTER_JOINED")), 2, "events of who joined")


def keys_create(hosts: Hosts, name: str, days: int) -> Path:
    """Make a certificate for a host where the first node has its authority, as docs/how-to/join-hosts.md says."""
    folder = hosts.folder / f"new-{days}"
    folder.mkdir()
    made = ["keys", "create", str(folder / name), "--host", "127.0.0.1", "--days", str(days)]
    command = launch.command(*made, "--authority", str(hosts.folder / "keys-a"))
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=launch.environment())
    return folder


@pytest.mark.long
@pytest.mark.requirement("R222", "R285")
def test_the_certificate_of_a_host_that_joined_is_renewed_as_the_guide_says(hosts: Hosts) -> None:
    hosts.first()
    hosts.joined("b", "a")
    hosts.wait_links("a", "b")
    node, place = hosts.nodes["b"], ("127.0.0.1", hosts.ports["b"])
    kept = node.data / "cluster"

    def put(new: Path) -> str:
        for suffix in (".key", ".pem"):
            shutil.copy(new / f"b{suffix}", kept / f"node{suffix}")
        node.run("keys", "reload")
        return ssl.get_server_certificate(place)

    first = ssl.get_server_certificate(place)
    short = put(keys_create(hosts, "b", days=10))
    assert short != first
    node.stop()
    node.start()
    node.wait_for("a word about the certificate", lambda status: status["certificates"])
    (told,) = node.status()["certificates"]
    assert f"{kept / 'node.pem'} ends on " in told
    assert put(keys_create(hosts, "b", days=365)) not in (first, short)
    # A link looks at the files for each new connection.
    carriers = [
        (one, row["index"])
        for one in hosts.nodes.values()
        for row in one.status()["processes"]
        if row["role"] == "link"
    ]
    assert carriers
    for one, index in carriers:
        one.kill("link", index)
    hosts.wait_links("a", "b")
    with hosts.connect("a") as here, hosts.connect("b") as there:
        crosses(here, there, "renewed/b")


@pytest.mark.requirement("R285")
def test_a_token_admits_nobody_twice_nor_late_nor_by_guess(hosts: Hosts) -> None:
    hosts.first()
    good = hosts.token("a", "--uses", "1")
    hosts.join("b", "a", good["token"])
    hosts.wait_links("a", "b")

    def refused(name: str, token: str, code: int) -> str:
        done = hosts.join(name, "a", token)
        assert done.returncode == 1, done.stderr
        assert f"error {code}" in done.stderr
        assert token not in done.stderr + done.stdout
        assert not (hosts.nodes[name].data / "cluster").exists()
        return done.stderr

    assert "'b'" in refused("c", good["token"], errors.JOIN_REFUSED)
    written = tokens.read(good["token"])
    guess = written._replace(secret=bytes(16)).text()
    assert "no such" in refused("c", guess, errors.JOIN_REFUSED)
    short = hosts.token("a", "--expires", "1s")
    time.sleep(2.1)
    assert "ended" in refused("c", short["token"], errors.JOIN_REFUSED)
    other = written._replace(fingerprint=bytes(32)).text()
    assert "certificate" in refused("c", other, errors.TLS_FAILED)
    deleted = hosts.token("a")
    hosts.nodes["a"].run("cluster", "token", "delete", deleted["id"])
    refused("c", deleted["token"], errors.JOIN_REFUSED)
    refused("c", good["token"][:-3], errors.INVALID_ARGUMENT)
    # Names are unique: another host called b is not let in, with a good token.
    hosts.nodes["other"] = Node(hosts.folder / "other", workers=1)
    (hosts.folder / "other.toml").write_text((hosts.folder / "b.toml").read_text())
    refused("other", hosts.token("a")["token"], errors.OBJECT_EXISTS)

    assert set(hosts.links("a")) == {"b"}
    refusals = hosts.events("a", "SYSTEM_CLUSTER_JOIN_REFUSED")
    assert len(refusals) >= 4
    log = "\n".join(json.dumps(row) for row in refusals) + hosts.nodes["a"].output()
    kept = (hosts.nodes["a"].data / "join-tokens.json").read_bytes()
    for made in (good, short, deleted):
        assert made["token"] not in log
        assert tokens.read(made["token"]).secret not in kept
    assert os.stat(hosts.nodes["a"].data / "join-tokens.json").st_mode & 0o777 == 0o600


@pytest.mark.long
@pytest.mark.requirement("R285")
def test_a_host_without_certificate_needs_a_node_with_the_key_of_the_authority(hosts: Hosts) -> None:
    hosts.first(with_key=False)
    token = hosts.token("a", "--uses", "1")["token"]
    done = hosts.join("b", "a", token)
    assert done.returncode == 1
    assert "authority.key" in done.stderr
    assert "--cert-file" in done.stderr
    # It brings one, made where the key is; the token was not used up.
    keys = hosts.folder / "keys-a"
    (hosts.folder / "a.away").rename(keys / "authority.key")
    issued = create_certificate(hosts.folder / "b-cert", ["127.0.0.1"], authority=keys)
    (keys / "authority.key").unlink()
    done = hosts.join(
        "b", "a", token, "--cert-file", str(issued.cert_file), "--key-file", str(issued.key_file)
    )
    assert done.returncode == 0, done.stderr
    hosts.wait_links("a", "b")


@pytest.mark.long
@pytest.mark.requirement("R285")
def test_a_join_that_breaks_is_repeated_and_a_node_that_is_away_is_named(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.first()
    hosts.joined("b", "a")
    hosts.wait_links("a", "b")
    hosts.nodes["b"].stop()
    token = hosts.token("a")["token"]
    node = hosts.describe("c")
    warnings: list[str] = []
    options = JoinOptions(
        url=hosts.url("a"),
        token=token,
        data_dir=node.data,
        config_file=str(hosts.folder / "c.toml"),
        on_warning=warnings.append,
    )

    # Killed when it had its answer and nothing of that on disk; the node was killed as well.
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stored, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            join(options)
    assert not (node.data / "cluster").exists()
    hosts.nodes["a"].kill("controller")

    # The same command again, with the token that has been used, by this node: it names the one that is away.
    done = hosts.join("c", "a", token)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "'b' could not be told" in line]
    command = warning.partition("on b: angarium ")[2].split()
    assert hosts.token_uses("a", token) == 1
    hosts.nodes["b"].start()
    hosts.nodes["b"].run(*command)
    hosts.wait_links("a", "b", "c")

    # Again with --join it starts; another cluster is not joined.
    hosts.nodes["c"].run("down")
    assert hosts.join("c", "a", token).returncode == 0
    hosts.nodes["c"].run("down")
    written = tokens.read(token)
    other = hosts.join("c", "a", written._replace(fingerprint=bytes(32)).text())
    assert f"error {errors.OBJECT_EXISTS}" in other.stderr
    hosts.nodes["c"].start()
    hosts.wait_links("a", "b", "c")


@pytest.mark.requirement("R285")
def test_who_leaves_hears_of_messages_that_wait_and_of_nodes_that_are_away(hosts: Hosts) -> None:
    hosts.first()
    hosts.joined("b", "a")
    hosts.wait_links("a", "b")
    with hosts.connect("a") as here:
        here.create_queue("orders", subscriptions=["orders/>"])
    wait_for(
        lambda: hosts.nodes["b"].run("queue", "show", "#link/a", "--json"), lambda shown: "orders/>" in shown
    )
    hosts.nodes["a"].stop()
    with hosts.connect("b") as there, there.producer() as producer:
        producer.publish("orders/1", b"waits")
        producer.flush()

    def leave(*more: str) -> subprocess.CompletedProcess[str]:
        command = launch.command("cluster", "leave", "--data", str(hosts.nodes["b"].data), *more)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = leave()
    assert done.returncode == 1
    assert f"error {errors.OBJECT_IN_USE}" in done.stderr
    assert "1 from b to a" in done.stderr
    assert set(hosts.links("b")) == {"a"}
    done = leave("--force")
    assert done.returncode == 0, done.stderr
    assert "'a' could not be told" in done.stderr
    hosts.nodes["a"].start()
    hosts.nodes["a"].run(*done.stderr.partition("on a: angarium ")[2].split())
    assert hosts.links("a") == hosts.links("b") == {}
    # It starts alone, and may join again under its name.
    hosts.nodes["b"].stop()
    hosts.joined("b", "a")
    hosts.wait_links("a", "b")


@pytest.mark.long
@pytest.mark.requirement("R285")
def test_what_is_acknowledged_while_a_node_leaves_is_in_its_queue(hosts: Hosts) -> None:
    hosts.first()
    hosts.joined("b", "a")
    hosts.wait_links("a", "b")
    hosts.nodes["a"].run("profile", "update", "default", "--set", "reject_no_subscription_match=true")
    with hosts.connect("b") as there:
        there.create_queue("orders", subscriptions=["orders/>"])
    wait_for(
        lambda: hosts.nodes["a"].run("queue", "show", "#link/b", "--json"), lambda shown: "orders/>" in shown
    )
    acknowledged: list[bytes] = []
    over = threading.Event()

    def publish(name: str) -> None:
        with hosts.connect("a") as here:
            for count in itertools.count():
                if over.is_set():
                    return
                with contextlib.suppress(errors.UnavailableError):  # shut, or nobody wants it any more
                    here.publish(f"orders/{name}", f"{name} {count}".encode(), mode="persistent")
                    acknowledged.append(f"{name} {count}".encode())

    publishers = [threading.Thread(target=publish, args=(name,)) for name in "xyz"]
    for one in publishers:
        one.start()
    try:
        wait_for(lambda: len(acknowledged), lambda count: count > 50, "messages")
        hosts.nodes["b"].run("cluster", "leave")
    finally:
        over.set()
        for one in publishers:
            one.join()
    with hosts.connect("b") as there, there.consume("orders") as flow:
        got = [flow.receive(DEADLINE_S).payload for _ in acknowledged]
    assert sorted(got) == sorted(acknowledged)
