"""How commands find the node: from any directory, by contexts, by variables; and what they say when they do not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command_shell import Shell, background
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.installation import Installation

pytestmark = pytest.mark.slow

DEFAULT_URL = "tcp://127.0.0.1:55555"
ANY_PORT = "tcp://127.0.0.1:0"
#: What is known to be wrong is said without trying; the rest is the start of Python on a busy machine.
AT_ONCE_S = 6.0


class Home(Shell):
    """A shell of a user with a home, a runtime directory, and no node named by a variable."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "here")
        self.home = folder
        for name in ("here", "run", "elsewhere"):
            (folder / name).mkdir()
        del self.environment["ANGARIUM_DATA"]
        self.environment |= {
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "PATH": os.environ["PATH"],
        }
        self.environment.pop("XDG_CONFIG_HOME", None)

    @property
    def registered(self) -> list[Path]:
        return list((self.home / "run" / "angarium").glob("*"))

    def up(self, name: str) -> dict[str, str]:
        """Start a node and give what `up` says of it."""
        node = self.run(
            "up", "--detach", "--workers", "1", "--data", name, "--listen", ANY_PORT, "--json"
        ).object
        return {"url": node["url"], "data": str(self.folder / name), "pid": node["pid"]}

    def refused(self, *arguments: str, status: int = 1) -> str:
        """Give what a command says that fails, at once."""
        began = time.monotonic()
        told = self.run(*arguments, status=status).err
        assert time.monotonic() - began < AT_ONCE_S
        return told


def somebody_has_the_usual_port() -> bool:
    """Client commands try it last, so another node of this machine answers them."""
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", 55555)) == 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    try:
        yield home
    finally:
        for data in [*home.folder.iterdir(), home.folder / "angarium-data"]:
            if (data / "node.json").exists():
                home.run("down", "--data", str(data))
        home.clear()


@pytest.mark.requirement("R274")
def test_the_usual_port_is_taken_by_default_and_said_to_be_taken_in_one_line(home: Home) -> None:
    """Whoever has the port, this test or another node: the start that names no address is refused."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 55555))
            taken.listen()
        except OSError:
            pass
        for more in ((), ("--detach",), ("--listen", DEFAULT_URL)):
            told = home.refused("up", *more)
            assert told.startswith("error 40902: In Use: ")
            # A port of a connection of somebody is taken as well.
            assert f" listens on {DEFAULT_URL} (" in told or f" {DEFAULT_URL} is taken, " in told
            assert "0 takes any free one, as in --listen tcp://127.0.0.1:0" in told
            assert told.count("\n") == 1


@pytest.mark.requirement("R274")
def test_a_node_is_found_from_any_directory_and_not_after_its_end(home: Home) -> None:
    node = home.up("data")
    assert (home.folder / "data").stat().st_mode & 0o777 == 0o700
    home.folder = home.home / "elsewhere"
    assert home.run("status", "--json").object["url"] == node["url"]
    subscriber = home.subscribe("a/>", "--count", "1")
    home.run("pub", "a/b", "found")
    assert home.finish(subscriber).lines == ["a/b found"]
    home.run("queue", "create", "q")
    assert home.run("consume", "q", "--idle-timeout", "0.1").lines == []
    assert node["data"] in home.run("down").out.decode()
    assert home.registered == []
    clients = [] if somebody_has_the_usual_port() else [("pub", "a", "x")]
    for command in (("status",), ("down",), *clients):
        told = home.refused(*command)
        assert told.startswith("error 50308: ")
        assert "'angarium up'" in told
    home.folder = home.home / "here"


def test_of_several_nodes_none_is_guessed_and_one_that_was_killed_is_forgotten(home: Home) -> None:
    one, two = home.up("one"), home.up("two")
    for command in (("status",), ("pub", "a", "x"), ("down",)):
        told = home.refused(*command)
        assert told.startswith("error 40018: Invalid Argument: 2 nodes run:\n")
        for node in (one, two):
            assert f"{node['data']}  {node['url']}\n" in told
        assert "--data DIR" in told
    assert home.run("status", "--data", "one", "--json").object["url"] == one["url"]
    home.environment["ANGARIUM_DATA"] = two["data"]
    assert home.run("status", "--json").object["url"] == two["url"]
    del home.environment["ANGARIUM_DATA"]
    os.kill(int(two["pid"]), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{two['pid']}").exists(), "the end of the node")
    assert home.run("status", "--json").object["url"] == one["url"]
    assert len(home.registered) == 1
    assert "the node of two does not run ('angarium up --data two' starts it)" in home.refused(
        "sub", "a", "--data", "two"
    )


def test_a_context_says_where_and_who_and_a_variable_chooses_it(home: Home) -> None:
    node = home.up("data")
    home.up("other")
    home.run("vpn", "create", "orders", "--data", "data")
    home.run("username", "create", "alice", "--vpn", "orders", "--data", "data", "--set", "enabled=true")
    where = ("--url", node["url"], "--vpn", "orders", "--user", "alice", "--data", node["data"])
    assert "'angarium context use mine'" in home.run("context", "add", "mine", *where).out.decode()
    assert "2 nodes run" in home.refused("pub", "a", "x")
    home.run("context", "use", "mine")
    home.run("pub", "a", "x")
    subscriber = home.subscribe("a", "--count", "1", "--client-name", "mine")
    (client,) = home.run("client", "list", "--json").rows
    assert (client["username"], client["vpn"]) == ("alice", "orders")
    home.run("pub", "a", "of the context")
    assert home.finish(subscriber).lines == ["a of the context"]
    assert [row["name"] for row in home.run("context", "list", "--json").rows] == ["mine"]
    assert home.run("context", "show", "--json").object["user"] == "alice"
    home.run("context", "use", "-")
    assert "2 nodes run" in home.refused("pub", "a", "x")
    home.environment["ANGARIUM_CONTEXT"] = "mine"
    home.run("pub", "a", "x")
    home.environment["ANGARIUM_CONTEXT"] = "mein"
    assert "contexts: mine" in home.refused("pub", "a", "x")
    del home.environment["ANGARIUM_CONTEXT"]
    home.environment |= {"ANGARIUM_URL": node["url"], "ANGARIUM_VPN": "orders", "ANGARIUM_USER": "alice"}
    home.run("pub", "a", "x")
    home.run("context", "rm", "mine")
    assert home.run("context", "list").lines == [
        "there is no context: 'angarium context add NAME --url ...' makes one"
    ]


def test_a_damaged_file_of_contexts_is_told_with_its_line(home: Home) -> None:
    file = home.home / ".config" / "angarium" / "contexts.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[context.a]\nurl = 3\n")
    for command in (("status",), ("context", "list"), ("context", "use", "a")):
        told = home.refused(*command)
        assert told.startswith(f"error 40017: Invalid Configuration: {file}, line 2: ")
        assert "mend it there, or remove the file" in told


def test_a_registry_of_another_user_is_not_trusted(home: Home) -> None:
    """Whoever may write there could lead commands to a node of theirs."""
    node = home.up("data")
    place = home.home / "run" / "angarium"
    place.chmod(0o777)
    told = home.refused("status")
    assert told.startswith(f"error 40017: Invalid Configuration: the registry of running nodes, {place}, ")
    assert "remove it, or set XDG_RUNTIME_DIR to a directory of yours" in told
    assert home.run("status", "--data", "data", "--json").object["url"] == node["url"]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:42689", "write tcp://localhost:42689"),
        ("nats://127.0.0.1:4222", "write tcp://127.0.0.1:4222"),
        ("tcp://127.0.0.1", "it names no port: write tcp://127.0.0.1:55555"),
    ],
)
def test_what_is_no_address_is_refused_at_once(
    url: str, advice: str, home: Home, installation: Installation
) -> None:
    for command in (
        ("sub", "a", "--url", url),
        ("status", "--admin-url", url),
        ("context", "add", "x", "--url", url),
    ):
        told = home.refused(*command, status=2)
        assert repr(url) in told
        assert advice in told
    program = f"from angarium import blocking\nblocking.connect({url!r})"
    began = time.monotonic()
    done = subprocess.run(
        [installation.python, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert time.monotonic() - began < AT_ONCE_S
    assert "error 40018: " in done.stderr
    assert advice in done.stderr


@pytest.mark.long  # tests/unit/cluster/test_cluster_commands_receiving.py writes such files
def test_a_script_that_waits_for_a_ready_file_runs_twice_in_a_row(home: Home) -> None:
    home.up("data")
    for word in ("first", "second"):
        subscriber = home.start("sub", "a", "--count", "1", "--ready-file", "ready")
        wait_until((home.folder / "ready").exists, "ready")
        home.run("pub", "a", word)
        assert home.finish(subscriber).lines == [f"a {word}"]
        assert not (home.folder / "ready").exists()


def test_an_option_before_the_command_gets_a_hint(home: Home) -> None:
    assert "Did you mean 'angarium status ... --data x'?" in home.refused("--data", "x", "status", status=2)


def test_the_command_tells_about_itself(home: Home, installation: Installation) -> None:
    found = home.run("version", "-o", "json").object
    assert found["server"] == found["sdk"] == installation.server["distributions"]["angarium-server"]
    done = subprocess.run(
        [installation.python, "-m", "angarium", "version", "-o", "json"],
        cwd=home.folder,
        env=home.environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == found
    assert home.run("help", "queue", "list").out == home.run("queue", "list", "--help").out
    pages = home.run("docs", "-o", "name").lines
    assert {"connecting", "errors", "topics", "tutorial/index"} <= set(pages)
    assert "Finding a node" in home.run("docs", "connecting").lines[0]
    assert any(line.startswith("errors: ") for line in home.run("docs", "--search", "50308").lines)
    assert home.run("docs", "monitor").out == home.run("docs", "how-to/monitor").out


def test_a_shell_completes_the_names_of_the_node(home: Home) -> None:
    def complete(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run(
            background("queue"),
            env={**home.environment, **words, "_ANGARIUM_COMPLETE": "bash_complete"},
            cwd=home.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.stderr == ""
        return [row.partition(",")[2] for row in done.stdout.splitlines() if row]

    assert complete("angarium queue show o") == [], "without a node there is nothing, and no error"
    home.up("data")
    home.run("queue", "create", "orders")
    home.run("queue", "create", "others")
    assert complete("angarium queue show o") == ["orders", "others"]
    assert complete("angarium consume ord") == ["orders"]
    assert complete("angarium vpn show ") == ["default"]
    assert complete("angarium queue create o") == []
    assert complete("angarium docs conn") == ["connecting"]
    for shell in ("bash", "zsh", "fish"):
        assert "_ANGARIUM_COMPLETE" in home.run("completion", shell).out.decode()


@pytest.mark.parametrize(
    ("typed", "inserted"),
    [
        ("\\\\#DE", "\\#DEAD_MSG_QUEUE"),
        pytest.param("\\'#DE", "#DEAD_MSG_QUEUE", marks=pytest.mark.long),
    ],
)
def test_bash_quotes_what_it_completes(home: Home, typed: str, inserted: str) -> None:
    home.up("data")
    script = home.run("completion", "bash").out.decode()
    bash = (
        f"{script}\nCOMP_WORDS=(angarium queue show {typed}); COMP_CWORD=3\n"
        f'_angarium_completion {background("queue")[0]}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", bash],
        env=home.environment,
        cwd=home.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == f"{inserted}\n"
