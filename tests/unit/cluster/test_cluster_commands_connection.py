"""Where commands look for a node, and as whom: options, variables, contexts, the registry. Nothing is connected."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from angarium.errors import AngariumError, NotFoundError
from cluster.commands.cli import command_tree
from cluster.commands.connecting import connection, contexts
from cluster.commands.connecting.contexts import Context
from cluster.data import registry
from tests.unit.cluster import surroundings
from tests.unit.cluster.running_nodes import RunningNodes, running_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where nobody listens.
NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing of the surroundings be found by chance, not even at the usual port of this host."""
    surroundings.empty(tmp_path, monkeypatch)
    monkeypatch.setattr(connection, "DEFAULT_URL", NOBODY)


@pytest.fixture
def nodes() -> Iterator[RunningNodes]:
    with running_nodes() as nodes:
        yield nodes


@pytest.fixture
def prod(tmp_path: Path) -> Context:
    """A context, the current one."""
    password = tmp_path / "prod.password"
    password.write_text("s3cret\n")
    context = Context(url="tcp://prod:1", vpn="orders", user="alice", password_file=str(password))
    with contexts.edit(contexts.path()) as found:
        found.context["prod"] = context
        found.context["test"] = Context(url="tcp://test:1", admin_url="tls://test:2")
        found.current = "prod"
    return context


@click.command()
@click.option("--retry-for", type=float)
@connection.client_options
def show(*, connect: connection.ConnectOptions, retry_for: float | None) -> connection.ConnectOptions:
    return connect


@click.command()
@click.option("--vpn", default="default")
@connection.admin_options
def operate(*, admin: connection.AdminOptions, vpn: str) -> tuple[connection.AdminOptions, str]:
    return admin, vpn


def options(*arguments: str) -> connection.ConnectOptions:
    found = show.main(args=list(arguments), standalone_mode=False)
    assert isinstance(found, connection.ConnectOptions)
    return found


def operator(*arguments: str) -> tuple[connection.AdminOptions, str]:
    found: tuple[connection.AdminOptions, str] = operate.main(args=list(arguments), standalone_mode=False)
    return found


def test_without_any_node_it_says_so_at_once_and_how_to_start_one() -> None:
    began = time.monotonic()
    with pytest.raises(AngariumError, match=r"50308.*no node of yours runs.*'angarium up' starts one"):
        _ = options().url
    with pytest.raises(AngariumError, match=r"50308.*no node of yours runs"):
        operator()[0].open()
    assert time.monotonic() - began < 2.5, "an attempt takes 5 s"


def test_a_node_of_somebody_else_is_found_at_the_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setattr(connection, "DEFAULT_URL", url)
        assert options().url == url


def test_the_node_of_the_working_directory_goes_before_another_one(
    tmp_path: Path, nodes: RunningNodes
) -> None:
    registry.Registration(nodes.start(tmp_path / "other", "tcp://127.0.0.1:2")).keep()
    assert options().url == "tcp://127.0.0.1:2"
    nodes.start(Path.cwd() / "angarium-data", "tcp://127.0.0.1:1")
    assert options().url == "tcp://127.0.0.1:1"


def test_the_one_node_that_runs_is_not_taken_for_the_one_here_that_does_not(
    tmp_path: Path, nodes: RunningNodes
) -> None:
    here = nodes.start(Path.cwd() / "angarium-data", "tcp://127.0.0.1:1")
    nodes.kill(here)
    with pytest.raises(AngariumError, match=r"50308.*angarium-data does not run \('angarium up' starts it"):
        _ = options().url
    registry.Registration(nodes.start(tmp_path / "other", "tcp://127.0.0.1:2")).keep()
    for find in (lambda: options().url, lambda: operator()[0].open()):
        with pytest.raises(AngariumError, match=r"50308(?s:.*)1 node runs:\n.*other.*\n.*--data DIR"):
            find()
    assert options("--data", str(tmp_path / "other")).url == "tcp://127.0.0.1:2"
    assert options("--retry-for", "60").url == "tcp://127.0.0.1:1"


def test_a_node_here_whose_file_is_damaged_is_not_passed_over(nodes: RunningNodes) -> None:
    (nodes.start(Path.cwd() / "angarium-data", "tcp://127.0.0.1:1") / "node.json").write_text("{")
    with pytest.raises(AngariumError, match=r"40017.*node\.json"):
        _ = options().url


def test_of_two_nodes_elsewhere_both_are_named(tmp_path: Path, nodes: RunningNodes) -> None:
    for name in ("one", "two"):
        registry.Registration(nodes.start(tmp_path / name, f"tcp://{name}:1", name)).keep()
    for find in (lambda: options().url, lambda: operator()[0].open()):
        with pytest.raises(
            AngariumError, match=r"2 nodes run:\n  one .*tcp://one:1\n  two .*tcp://two:1\n.*--data DIR"
        ):
            find()
    assert options("--data", str(tmp_path / "two")).url == "tcp://two:1"


def test_options_go_before_variables_and_an_address_before_a_data_directory(
    tmp_path: Path, nodes: RunningNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("angarium-data", "other", "third"), 1):
        nodes.start(Path.cwd() / name, f"tcp://127.0.0.1:{number}")
    monkeypatch.setenv("ANGARIUM_DATA", "other")
    assert options().url == "tcp://127.0.0.1:2"
    assert options("--data", "third").url == "tcp://127.0.0.1:3"
    monkeypatch.setenv("ANGARIUM_URL", "tcp://127.0.0.1:4")
    assert options().url == "tcp://127.0.0.1:4"
    assert options("--data", "third").url == "tcp://127.0.0.1:3"
    assert options("--url", "tcp://127.0.0.1:5", "--data", "third").url == "tcp://127.0.0.1:5"


def test_a_data_directory_that_was_named_must_hold_a_node_that_runs(nodes: RunningNodes) -> None:
    with pytest.raises(AngariumError, match=r"50308.*no node was started on the data directory 'missing'"):
        _ = options("--data", "missing").url
    unready = nodes.start(Path.cwd() / "unready", "")
    with pytest.raises(AngariumError, match="never ready"):
        _ = options("--data", "unready").url
    nodes.kill(unready)
    with pytest.raises(
        AngariumError, match=r"50308.*the node of unready does not run.*'angarium up --data unready'"
    ):
        _ = options("--data", "unready").url


def test_the_authority_of_a_node_of_this_host_is_trusted_if_no_other_is_named(
    nodes: RunningNodes, tmp_path: Path
) -> None:
    for name, url in (("joined", "tls://127.0.0.1:1"), ("alone", "tls://127.0.0.1:2"), ("plain", NOBODY)):
        nodes.start(Path.cwd() / name, url)
    own = Path.cwd() / "joined" / "cluster" / "authority.pem"
    for file in (own, Path.cwd() / "plain" / "cluster" / "authority.pem"):
        file.parent.mkdir()
        file.touch()
    assert options("--data", "joined").arguments()["ca_file"] == str(own)
    named = tmp_path / "named.pem"
    named.touch()
    assert options("--data", "joined", "--ca-file", str(named)).arguments()["ca_file"] == str(named)
    for others in (("--data", "alone"), ("--data", "plain"), ("--url", "tls://127.0.0.1:1")):
        assert "ca_file" not in options(*others).arguments()


def test_who_waits_for_a_node_that_comes_back_may_begin_before_it(nodes: RunningNodes) -> None:
    nodes.kill(nodes.start(Path.cwd() / "away", "tcp://127.0.0.1:7"))
    assert options("--data", "away", "--retry-for", "60").url == "tcp://127.0.0.1:7"
    assert options("--retry-for", "60").url == NOBODY


def test_the_current_context_says_where_and_who(prod: Context) -> None:
    found = options()
    assert (found.url, found.vpn, found.username, found.password) == (
        "tcp://prod:1",
        "orders",
        "alice",
        "s3cret",
    )
    assert options("--user", "bob").username == "bob"
    assert operator("--data", "x")[1] == "default"


def test_a_context_is_not_for_a_node_that_was_named_otherwise(
    prod: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password of one node must not be sent to another."""
    for found in (options("--url", "tcp://other:1"), options("--url", "tcp://other:1", "--vpn", "v")):
        assert (found.url, found.username, found.password) == ("tcp://other:1", "default", None)
    monkeypatch.setenv("ANGARIUM_URL", "tcp://variable:1")
    assert (options().url, options().password) == ("tcp://variable:1", None)


def test_a_context_that_is_named_goes_before_variables_if_an_option_names_it(
    prod: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANGARIUM_URL", "tcp://variable:1")
    monkeypatch.setenv("ANGARIUM_USER", "bob")
    assert (options("--context", "prod").url, options("--context", "prod").username) == (
        "tcp://prod:1",
        "alice",
    )
    assert (
        options("--context", "prod", "--url", "tcp://o:1", "--user", "eve").arguments().items()
        >= {
            "url": "tcp://o:1",
            "username": "eve",
            "password": "s3cret",
        }.items()
    )
    monkeypatch.setenv("ANGARIUM_CONTEXT", "prod")
    found = options()
    assert (found.url, found.username, found.vpn) == ("tcp://variable:1", "bob", "default")
    assert found.password is None
    assert options("--data", "x").password is None
    monkeypatch.delenv("ANGARIUM_URL")
    assert (options().url, options().vpn, options().password) == ("tcp://prod:1", "orders", "s3cret")
    with pytest.raises(NotFoundError, match="contexts: prod, test"):
        options("--context", "prd")


def test_an_operator_does_not_end_up_at_another_node_than_the_context(
    prod: Context, nodes: RunningNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.start(Path.cwd() / "angarium-data", "tcp://127.0.0.1:1")
    with pytest.raises(AngariumError, match="context 'prod' has no address for operators"):
        operator()[0].open()
    assert operator("--context", "test")[0].admin_url == "tls://test:2"
    assert operator("--data", "x")[0].admin_url == ""
    monkeypatch.setenv("ANGARIUM_ADMIN_URL", "tls://variable:2")
    assert operator()[0].admin_url == "tls://variable:2"


def test_a_context_or_a_variable_chooses_the_message_vpn_of_operators_too(
    prod: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (operator()[1], operator("--vpn", "other")[1]) == ("orders", "other")
    monkeypatch.setenv("ANGARIUM_VPN", "sales")
    assert operator("--data", "x")[1] == "sales"
    assert (operator()[1], options().vpn) == ("sales", "sales")
    assert (operator("--context", "prod")[1], options("--context", "prod").vpn) == ("orders", "orders")


def test_a_damaged_file_of_contexts_stops_only_who_needs_it() -> None:
    contexts.path().parent.mkdir(parents=True)
    contexts.path().write_text("current = \n")
    with pytest.raises(AngariumError, match=r"contexts.toml, line 1: "):
        options()
    assert options("--url", "tcp://a:1").url == "tcp://a:1"


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    path.write_text("s3cret word\nsecond line\n")
    assert options("--password-file", str(path)).password == "s3cret word"
    assert options().password is None
    monkeypatch.setenv("ANGARIUM_PASSWORD_FILE", str(path))
    assert options().password == "s3cret word"
    path.write_text("")
    with pytest.raises(AngariumError, match="empty"):
        options("--password-file", str(path))


def test_the_options_are_the_arguments_of_connect() -> None:
    where = ("--url", "tcp://127.0.0.1:55555")
    found = options(*where, "--vpn", "v", "--user", "u", "--client-name", "c", "--timeout", "2.5").arguments()
    assert found == {
        "url": "tcp://127.0.0.1:55555",
        "vpn": "v",
        "username": "u",
        "password": None,
        "timeout_s": 2.5,
        "client_name": "c",
    }


@pytest.fixture
def tls_files(tmp_path: Path) -> dict[str, Path]:
    """Files that only look like those of TLS: nothing is connected here."""
    files = {name: tmp_path / name for name in ("ca", "cert", "key")}
    for file in files.values():
        file.write_text("x")
        file.chmod(0o600)
    return files


def test_the_files_of_tls_are_arguments_of_connect(tls_files: dict[str, Path]) -> None:
    given = [word for name, file in tls_files.items() for word in (f"--{name}-file", str(file))]
    found = options("--url", "tls://a:1", *given).arguments()
    assert {name: found[name] for name in ("ca_file", "cert_file", "key_file")} == {
        "ca_file": str(tls_files["ca"]),
        "cert_file": str(tls_files["cert"]),
        "key_file": str(tls_files["key"]),
    }
    assert "ca_file" not in options("--url", "tls://a:1").arguments()


def test_variables_of_tls_do_not_count_for_other_addresses_and_options_do(
    tls_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sets them for all commands may still use the node of this host; who writes them down meant it."""
    for name, file in tls_files.items():
        monkeypatch.setenv(connection.variable(f"--{name}-file"), str(file))
    ca_file = str(tls_files["ca"])
    assert options("--url", "tls://a:1").arguments()["ca_file"] == ca_file
    assert not {"ca_file", "cert_file", "key_file"} & options("--url", "tcp://a:1").arguments().keys()
    found = options("--url", "tcp://a:1", "--ca-file", ca_file).arguments()
    assert (found["ca_file"], "cert_file" in found) == (ca_file, False)


def test_a_context_has_the_files_of_tls_and_an_option_goes_before(tls_files: dict[str, Path]) -> None:
    with contexts.edit(contexts.path()) as found:
        found.context["far"] = Context(url="tls://far:1", ca_file="/ca", cert_file="/cert", key_file="/key")
    of_context = options("--context", "far").arguments()
    assert (of_context["ca_file"], of_context["cert_file"], of_context["key_file"]) == (
        "/ca",
        "/cert",
        "/key",
    )
    given = options("--context", "far", "--ca-file", str(tls_files["ca"])).arguments()
    assert (given["ca_file"], given["cert_file"]) == (str(tls_files["ca"]), "/cert")


def test_a_private_key_that_others_may_read_is_warned_of(
    tls_files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for name, file in tls_files.items() for word in (f"--{name}-file", str(file))]
    options("--url", "tls://a:1", *given)
    assert capsys.readouterr().err == ""
    tls_files["key"].chmod(0o644)
    options("--url", "tls://a:1", *given)
    assert f"chmod 600 {tls_files['key']}" in capsys.readouterr().err


def test_the_address_of_a_controller_is_one_of_tls() -> None:
    with pytest.raises(click.BadParameter, match=r"'tcp://a:1' is no address for operators: .*tls://"):
        operator("--admin-url", "tcp://a:1")
    assert operator("--admin-url", "tls://a:1")[0].admin_url == "tls://a:1"


def test_every_option_that_says_where_and_who_has_its_variable() -> None:
    wanted = {"--url", "--data", "--context", "--user", "--password-file", "--key-file"}
    wanted |= {"--ca-file", "--cert-file"}
    wanted |= {"--admin-url", "--timeout", "--client-name", "--listen", "--config"}
    missing = []
    for path, command in command_tree().items():
        for parameter in command.params:
            name = parameter.opts[0]
            # A context is made of options, and the password of a user or operator is not ours.
            others = ("angarium context", "angarium username", "angarium operator")
            if name in wanted and not path.startswith(others):
                missing += [] if connection.variable(name) in variables(parameter) else [f"{path} {name}"]
    # Who a node is and who a client is differ, also in one shell; `down` waits for processes, not for an answer.
    assert missing == ["angarium up --cert-file", "angarium up --key-file", "angarium down --timeout"]


def variables(parameter: click.Parameter) -> list[Any]:
    return parameter.envvar if isinstance(parameter.envvar, list) else [parameter.envvar]
