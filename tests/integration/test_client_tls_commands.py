"""`tls://` by the command line and for jobs on Spark, to a node behind something that ends TLS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium.spark.connecting import open_client
from angarium.spark.options import BATCH, settings
from angarium_server import launch
from angarium_server.testing import Node
from cluster.commands.connecting.connection import ConnectOptions, Found
from cluster.commands.pipeline.options import check_target, node_settings
from tests.integration.tls_front import tls_front

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.command_server import CommandServer
    from tests.integration.certificates import Authority, Pair

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, authority: Authority, server_pair: Pair) -> Iterator[str]:
    """The address of a node, where a certificate of the client is demanded."""
    context = server_pair.server_context(clients_of=authority.cert)
    with Node(tmp_path_factory.mktemp("tls") / "data", workers=1) as node:
        port = int(node.url.rpartition(":")[2])
        with tls_front(port, context) as url:
            yield url


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, str]:
    """The files of a client, by the arguments of `connect`."""
    pair = authority.issue("commands")
    return {"ca_file": str(authority.cert), "cert_file": str(pair.cert), "key_file": str(pair.key)}


class Command:
    """`angarium` of somebody whose contexts are in a folder."""

    def __init__(self, server: CommandServer, folder: Path) -> None:
        self._server = server
        self._own = {"XDG_CONFIG_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}

    def __call__(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._server.run_text([*arguments], launch.environment() | self._own | variables)


@pytest.fixture
def angarium(commands: CommandServer, tmp_path: Path) -> Command:
    return Command(commands, tmp_path)


def test_options_variables_and_contexts_lead_to_a_node(
    url: str, files: dict[str, str], angarium: Command
) -> None:
    keys = [*("--ca-file", files["ca_file"]), *("--cert-file", files["cert_file"])]
    keys += ["--key-file", files["key_file"]]
    published = angarium("pub", "a/b", "x", "--url", url, *keys)
    assert (published.returncode, published.stderr) == (0, "")
    names = {"ca_file": "CA_FILE", "cert_file": "CERT_FILE", "key_file": "KEY_FILE"}
    variables = {f"ANGARIUM_{names[name]}": file for name, file in files.items()}
    assert angarium("pub", "a/b", "x", "--url", url, **variables).returncode == 0
    assert angarium("context", "add", "far", "--url", url, *keys).returncode == 0
    assert angarium("pub", "a/b", "x", "--context", "far").returncode == 0
    shown = angarium("context", "show", "far", "--json").stdout
    assert files["key_file"] in shown


def test_a_command_says_what_is_missing(url: str, tmp_path: Path, angarium: Command) -> None:
    failed = angarium("pub", "a/b", "x", "--url", url)
    assert failed.returncode == 1
    assert f"error {errors.TLS_FAILED}" in failed.stderr
    assert "ca_file" in failed.stderr
    failed = angarium("pub", "a/b", "x", "--url", url, "--ca-file", str(tmp_path / "missing"))
    assert failed.returncode == 2
    assert "does not exist" in failed.stderr


def test_jobs_take_the_files_from_commands_and_options(url: str, files: dict[str, str]) -> None:
    connect = ConnectOptions(
        find=lambda: Found(url),
        vpn="default",
        username="default",
        password=None,
        timeout_s=20.0,
        client_name="",
        tls=files,
    )
    node = node_settings(connect)
    check_target(node, None)
    with open_client(settings(BATCH, {**node, "queue": "none"})) as client:
        assert client.connected
    with pytest.raises(errors.ConnectionLostError, match=r"option url: .*ca_file"):
        open_client(settings(BATCH, {"url": url, "queue": "none"}))
