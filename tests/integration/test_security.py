"""Who may do what, end to end: TLS, passwords, ACL profiles and Message VPNs, by the command line and real clients."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq

import angarium
from angarium import blocking, errors, wire
from angarium_server import launch
from angarium_server.testing import Node, NodeFailedError
from tests.integration.certificates import Authority
from tests.integration.raw_client import RawClient, hello_header, row
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.command_server import CommandServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20.0
PASSWORD = "correct horse battery staple"
WRONG = "swordfish-swordfish"


class Shell:
    """Runs `angarium` for one node."""

    def __init__(self, node: Node, folder: Path, commands: CommandServer) -> None:
        self._commands = commands
        self.node = node
        self.folder = folder

    def __call__(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._commands.run_text([*arguments, "--data", str(self.node.data)], launch.environment())
        assert done.returncode == status, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def password_file(self, name: str, password: str) -> str:
        path = self.folder / name
        path.write_text(f"{password}\n", encoding="utf-8")
        path.chmod(0o600)
        return str(path)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, commands: CommandServer) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("security")
    with Node(folder / "data", workers=2, log_level="DEBUG") as node:
        shell = Shell(node, folder, commands)
        shell("username", "update", "default", "--set", "enabled=true")  # stays so when others get passwords
        yield shell


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


def refused(code: int, connect: Callable[[], Any]) -> str:
    """Expect that a call is refused with a code, and give the text."""
    with pytest.raises(errors.AngariumError) as caught:
        connect()
    assert caught.value.code == code, caught.value
    return str(caught.value)


def own_address() -> str:
    """Give an address of this machine that is not loopback, or skip the test."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; it makes the system choose an address
        except OSError:
            pytest.skip("this machine has no network")
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        pytest.skip("this machine has no network")
    return address


# Certificates.


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, commands: CommandServer) -> Iterator[Shell]:
    """A node on every address of the machine, with a certificate."""
    folder = tmp_path_factory.mktemp("tls")
    address = own_address()
    subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "angarium_server",
            "keys",
            "create",
            str(folder / "node"),
            "--host",
            address,
        ],
        check=True,
        cwd=ROOT,
        capture_output=True,
    )
    config = folder / "node.toml"
    config.write_text(
        "[router]\ntls_cert_file = 'node.pem'\ntls_key_file = 'node.key'\n"
        "[vpn.default.username.default]\nenabled = true\n",
        encoding="utf-8",
    )
    with Node(folder / "data", workers=1, listen="tls://0.0.0.0:0", config=config) as node:
        yield Shell(node, folder, commands)


def test_a_certificate_encrypts_and_who_does_not_trust_it_is_kept_out(keyed: Shell, tmp_path: Path) -> None:
    url = local(keyed.node)
    with blocking.connect(url, ca_file=keyed.folder / "authority.pem") as client:
        subscription = client.subscribe("a")
        client.publish("a", b"through the tunnel")
        assert subscription.receive(LIMIT_S).payload == b"through the tunnel"
    refused(errors.TLS_FAILED, lambda: blocking.connect(url, timeout_s=1.0))
    other = Authority(tmp_path / "other").cert
    refused(errors.TLS_FAILED, lambda: blocking.connect(url, ca_file=other, timeout_s=1.0))


def local(node: Node) -> str:
    return f"tls://127.0.0.1:{node.url.rpartition(':')[2]}"


def test_the_command_line_uses_the_file_of_the_authority(keyed: Shell) -> None:
    url = local(keyed.node)
    keyed("pub", "a", "x", "--url", url, "--ca-file", str(keyed.folder / "authority.pem"))
    failed = keyed("pub", "a", "x", "--url", url, "--timeout", "1", status=1)
    assert failed.stderr.startswith("error 60006: ")


def test_a_username_without_password_is_for_this_host_only(keyed: Shell) -> None:
    far = f"tls://{own_address()}:{keyed.node.url.rpartition(':')[2]}"
    trusted = keyed.folder / "authority.pem"
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(far, ca_file=trusted, timeout_s=LIMIT_S))
    file = keyed.password_file("far.password", PASSWORD)
    keyed("username", "create", "far", "--password-file", file)
    with blocking.connect(far, ca_file=trusted, username="far", password=PASSWORD) as client:
        assert client.connected


def test_key_files_are_for_their_owner_and_never_overwritten(keyed: Shell) -> None:
    secret = keyed.folder / "node.key"
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes()
    again = subprocess.run(
        [sys.executable, "-P", "-m", "angarium_server", "keys", "create", str(secret.with_suffix(""))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1
    assert again.stderr.startswith("error ")
    assert secret.read_bytes() == before
    assert secret.read_text(encoding="ascii").splitlines()[1] not in keyed.node.output()


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://*:0"])
def test_an_address_for_others_without_keys_is_refused_with_what_to_do(tmp_path: Path, listen: str) -> None:
    with pytest.raises(NodeFailedError, match=r"error 40017: .*angarium keys create"):
        Node(tmp_path / "data", workers=1, listen=listen).start()


# Passwords.


def test_passwords_are_checked_and_found_nowhere(
    shell: Shell, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    file = shell.password_file("alice.password", PASSWORD)
    shell("username", "create", "alice", "--password-file", file)
    url = shell.node.url
    with blocking.connect(url, username="alice", password=PASSWORD) as client:
        assert client.connected
    wrong = refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, username="alice", password=WRONG))
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, username="alice"))
    unknown = refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, username="bob", password=WRONG))
    assert wrong == unknown, "the text does not tell who exists"
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, username="alice", password=PASSWORD[:-1]))
    shell("pub", "a", "x", "--user", "alice", "--password-file", file)
    failed = shell("pub", "a", "x", "--user", "alice", status=1)
    assert failed.stderr.startswith("error 40101: ")

    secrets = [PASSWORD, WRONG, "scrypt$"]
    shown = [
        shell("status", "--json").stdout,
        shell("events").stdout,
        shell("username", "show", "alice", "--json").stdout,
        shell("username", "list", "--json").stdout,
        shell("config", "show").stdout,
        shell("client", "list", "--json").stdout,
        failed.stderr,
        wrong,
        shell.node.output(),
    ]
    for secret in secrets:
        assert [text for text in shown if secret in text] == []
    assert json.loads(shown[2])["password_set"] is True
    for path in shell.node.data.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path
    for process in shell.node.status()["processes"]:
        command = Path(f"/proc/{process['pid']}/cmdline").read_bytes()
        assert PASSWORD.encode() not in command


@pytest.mark.requirement("R283", "R284")
def test_nobody_comes_in_without_a_password_once_somebody_has_one(
    tmp_path: Path, commands: CommandServer
) -> None:
    with Node(tmp_path / "data", workers=1) as node:
        shell = Shell(node, tmp_path, commands)
        shell("queue", "create", "orders", "--subscription", "orders/>")
        assert "without a password: default (VPN default), from this machine" in shell("status").stdout
        with blocking.connect(node.url) as client:
            client.publish("orders/1", b"pretzels", mode="persistent")
            with client.consume("orders") as flow:
                assert flow.receive(LIMIT_S).payload == b"pretzels"
            shell("username", "create", "alice", "--password-file", shell.password_file("alice", PASSWORD))
            wait_until(lambda: not client.connected, "who had no password is out")
        refused(errors.UNAUTHORIZED, lambda: blocking.connect(node.url))
        assert "without a password" not in shell("status").stdout
        with blocking.connect(node.url, username="alice", password=PASSWORD) as client:
            refused(errors.PERMISSION_DENIED, lambda: client.consume("orders").__enter__())
        told = [json.loads(line)["event"] for line in shell("events", "--json").stdout.splitlines()]
        assert told.count("SYSTEM_CLIENT_USERNAME_DISABLED") == 1
        assert told.count("SYSTEM_CLIENT_LOGIN_REFUSED") == 1


def test_a_changed_password_and_a_disabled_username_end_what_was_allowed(shell: Shell) -> None:
    url = shell.node.url
    old, new = shell.password_file("old", "old password"), shell.password_file("new", "new password")
    shell("username", "create", "carol", "--password-file", old)
    with blocking.connect(url, username="carol", password="old password", reconnect=False) as client:
        shell("username", "update", "carol", "--password-file", new)
        refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, username="carol", password="old password"))
        shell("username", "update", "carol", "--set", "enabled=false")
        wait_until(lambda: client.closed, "the session is ended")
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, username="carol", password="new password"))
    shell("username", "update", "carol", "--set", "enabled=true")
    with blocking.connect(url, username="carol", password="new password") as client:
        assert client.connected
        shell("username", "delete", "carol", "--yes")
        wait_until(lambda: not client.connected, "a deleted username has no sessions")


def test_the_limit_of_connections_holds_against_logins_at_once(
    shell: Shell, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """Passwords are compared while others log in; whoever is too many is refused after it all the same."""
    file = shell.password_file("limited", PASSWORD)
    shell("profile", "create", "single", "--set", "max_connection_count_per_client_username=1")
    shell("username", "create", "limited", "--password-file", file, "--set", "client_profile=single")
    clients = [RawClient(context, shell.node.url) for _ in range(6)]
    try:
        for client in clients:
            client.send(wire.HELLO, hello_header(username="limited", password=PASSWORD))
        answers = [client.receive(LIMIT_S) for client in clients]
        codes = sorted(0 if one.operation == wire.WELCOME else one.header[0] for one in answers)
        assert codes == [0] + [errors.TOO_MANY_CONNECTIONS] * 5
    finally:
        for client in clients:
            client.close()


def test_a_token_of_one_client_is_of_no_use_to_another(
    shell: Shell, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    file = shell.password_file("dora.password", PASSWORD)
    shell("username", "create", "dora", "--password-file", file)
    shell("username", "create", "eve", "--password-file", file)
    login = {"username": "dora", "password": PASSWORD, "client_name": "dora-1"}
    with RawClient(context, shell.node.url).hello(**login) as owner:
        token = owner.welcome["token"]
    tries: list[dict[str, Any]] = [
        {"username": "eve", "client_name": "dora-1", "token": token},
        {"username": "dora", "client_name": "dora-2", "token": token},
        {"username": "dora", "client_name": "dora-1", "token": token[:-1]},
        {"username": "dora", "client_name": "dora-1", "token": token[:20] + b"\0" + token[21:]},
        {"username": "dora", "client_name": "dora-1", "token": b""},
    ]
    for fields in tries:
        with RawClient(context, shell.node.url) as thief:
            thief.send(wire.HELLO, hello_header(**fields))
            assert thief.closed() == errors.UNAUTHORIZED, fields
    with RawClient(context, shell.node.url) as again:
        again.hello(username="dora", client_name="dora-1", token=token)
        assert again.welcome["resumed"]
    assert PASSWORD.encode() not in token


# What a client may do.


@pytest.mark.requirement("R57")
def test_an_acl_profile_made_by_the_command_line_is_in_force_at_once(shell: Shell) -> None:
    url = shell.node.url
    shell(
        "acl",
        "create",
        "readers",
        "--set",
        "client_connect_default=allow",
        "--set",
        "subscribe_topic_exceptions=news/>",
        "--set",
        "publish_topic_exceptions=news/$client-username/>",
        "--set",
        "subscribe_share_name_default=disallow",
    )
    file = shell.password_file("frank.password", PASSWORD)
    shell("username", "create", "frank", "--password-file", file, "--set", "acl_profile=readers")
    notices: list[angarium.ClientEvent] = []
    with blocking.connect(url, username="frank", password=PASSWORD, on_event=notices.append) as client:
        allowed = client.subscribe("news/>")
        refused(errors.SUBSCRIBE_DENIED, lambda: client.subscribe("secret/>"))
        refused(errors.SUBSCRIBE_DENIED, lambda: client.subscribe(">"))
        refused(errors.SUBSCRIBE_DENIED, lambda: client.subscribe("news"))
        refused(errors.SHARE_NAME_DENIED, lambda: client.subscribe("#share/group/news/>"))
        client.publish_many([("news/frank/a", b"1"), ("news/other/a", b"2"), ("news/frank/b", b"3")])
        client.flush(LIMIT_S)
        assert [allowed.receive(LIMIT_S).payload for _ in range(2)] == [b"1", b"3"]
        wait_until(lambda: [n for n in notices if n.kind == "notice"], "the refusal is told")
        (notice,) = [one for one in notices if one.kind == "notice"]
        assert (notice.code, notice.messages, notice.detail) == (errors.PUBLISH_DENIED, 1, "news/other/a")
        shell("acl", "update", "readers", "--set", "publish_topic_exceptions=news/other/>")
        client.publish_many([("news/frank/a", b"4"), ("news/other/a", b"5")])
        assert allowed.receive(LIMIT_S).payload == b"5"
    shell.node.wait_for(
        "both refusals are counted", lambda status: status["discards"]["publish-topic-acl"] >= 2
    )
    failed = shell("pub", "secret/a", "x", "--user", "frank", "--password-file", file, status=1)
    assert "error 40302" in failed.stderr


def test_an_address_that_the_acl_profile_does_not_allow_is_refused(shell: Shell) -> None:
    shell(
        "acl",
        "create",
        "elsewhere",
        "--set",
        "client_connect_default=allow",
        "--set",
        "client_connect_exceptions=127.0.0.0/8",
    )
    shell("username", "create", "greta", "--set", "acl_profile=elsewhere")
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(shell.node.url, username="greta"))


@pytest.mark.requirement("R14")
def test_a_profile_without_shared_subscriptions_allows_neither_making_nor_joining(shell: Shell) -> None:
    shell("profile", "create", "plain", "--set", "allow_shared_subscriptions=false")
    shell("username", "create", "hans", "--set", "client_profile=plain")
    with (
        blocking.connect(shell.node.url) as other,
        blocking.connect(shell.node.url, username="hans") as client,
    ):
        refused(errors.SHARED_SUBSCRIPTION_DENIED, lambda: client.subscribe("#share/new/a"))
        other.subscribe("#share/made/a")
        refused(errors.SHARED_SUBSCRIPTION_DENIED, lambda: client.subscribe("#share/made/a"))


# Message VPNs.


@pytest.mark.requirement("R53", "R65")
def test_message_vpns_know_nothing_of_each_other(shell: Shell) -> None:
    url = shell.node.url
    for vpn in ("left", "right"):
        shell("vpn", "create", vpn)
        shell("username", "create", "user", "--vpn", vpn)

    async def test() -> None:
        async with (
            angarium.connect(url, vpn="left", username="user", client_name="same") as left,
            angarium.connect(url, vpn="right", username="user", client_name="same") as right,
            angarium.connect(url) as third,
        ):
            mine = await left.subscribe([">", "#share/g/shared"])
            theirs = await right.subscribe([">", "#share/g/shared"])
            others = await third.subscribe(">")
            for client, text in ((left, b"left"), (right, b"right"), (third, b"third")):
                for number in range(20):
                    await client.publish(f"t/{number}", text)
                await client.publish_many([("t/0", text)] * 50)
                await client.publish("shared", text, dto=True)
                await client.flush()
            for subscription, text in ((mine, b"left"), (theirs, b"right"), (others, b"third")):
                got = [await subscription.receive(LIMIT_S) for _ in range(71)]
                assert {message.payload for message in got} == {text}
            with pytest.raises(errors.ForbiddenError):
                await left.subscribe(f"{right.inbox}")
            await third.publish(left.inbox, b"across")
            await third.flush()
            await left.publish("last", b"left")
            while (message := await mine.receive(LIMIT_S)).topic != "last":
                assert message.payload == b"left"

    asyncio.run(asyncio.wait_for(test(), LIMIT_S * 3))
    rows = [
        json.loads(line) for line in shell("client", "list", "--vpn", "left", "--json").stdout.splitlines()
    ]
    assert rows == []
    shell("vpn", "update", "left", "--set", "enabled=false")
    refused(errors.VPN_UNAVAILABLE, lambda: blocking.connect(url, vpn="left", username="user"))
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, vpn="middle", username="user"))
    refused(errors.UNAUTHORIZED, lambda: blocking.connect(url, vpn="right", username="alice"))


def test_nobody_subscribes_to_the_inbox_of_another_or_counts_on_its_name(
    shell: Shell, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with (
        RawClient(context, shell.node.url).hello() as owner,
        RawClient(context, shell.node.url).hello() as thief,
    ):
        inbox = owner.welcome["inbox"]
        tries = [
            inbox,
            f"{inbox}/>",
            inbox[:-1] + "*",
            "#P2P/>",
            "#P2P/*/>",
            f"#share/g/{inbox}",
            f"#noexport/{inbox}",
        ]
        for text in tries:
            (answer,) = thief.subscribe(text)
            assert answer is not None, text
            assert answer[0] == errors.RESERVED_TOPIC, text
        assert thief.subscribe(">", "*/INB/>") == [None, None]
        assert owner.subscribe(inbox) == [None]
        for publisher in (owner, thief, owner):
            publisher.publish_uncut([row(0, inbox, b"for the owner")])
        received = owner.receive_only(wire.DELIVER)
        assert wire.unpack(received.batches[0])[0][5] == b"for the owner"
        assert thief.is_open()
        while thief.socket.poll(100):
            assert thief.socket.recv_multipart()[0] != wire.DELIVER


def is_let_in(context: zmq.Context[zmq.Socket[bytes]], url: str, username: str) -> bool:
    """Log in, or be told that others do at the same time: a client tries again then."""
    with RawClient(context, url) as client:
        client.send(wire.HELLO, hello_header(username=username, password=PASSWORD))
        answer = client.receive()
        assert answer.operation == wire.WELCOME or answer.header[0] == errors.CONNECT_RATE_EXCEEDED, answer
        return answer.operation == wire.WELCOME


@pytest.mark.requirement("R280")
def test_guesses_from_many_addresses_do_not_keep_others_out(shell: Shell) -> None:
    """Forty addresses guess at one user without end; another user and that one log in from an address of their own."""
    for name in ("anna", "bert"):
        shell(
            "username", "create", name, "--password-file", shell.password_file(f"{name}.password", PASSWORD)
        )
    port = shell.node.url.rpartition(":")[2]
    with zmq.Context() as context:
        crowd: list[RawClient] = []
        for turn in range(8):
            for number in range(1, 41):
                crowd.append(RawClient(context, f"tcp://127.0.7.{number}:0;127.0.0.1:{port}"))
                crowd[-1].send(wire.HELLO, hello_header(username="bert", password=f"{WRONG}{turn}"))
        login = functools.partial(is_let_in, context, f"tcp://127.0.8.8:0;127.0.0.1:{port}")
        for username in ("anna", "bert"):
            wait_until(functools.partial(login, username), f"a login of {username}", timeout_s=12.0)
        for guess in crowd:
            guess.close()
