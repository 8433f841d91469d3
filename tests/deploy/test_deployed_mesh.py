"""The configuration files in deploy/, with the keys that its README makes: three nodes start with them and are joined.

They run on loopback here, so addresses and ports are others; everything else is as it stands in the files.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from angarium_server import launch
from angarium_server.testing import Node, NodeFailedError
from cluster.configuration.config import check_config
from cluster.security.certificates import names_of, read_certificates
from tests.share import short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.command_server import CommandServer

DEADLINE_S = 40.0
DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
pytestmark = pytest.mark.slow


def make_keys(section: str, folder: Path, server: CommandServer) -> Path:
    """Run the `angarium keys` commands of a section of the README, and give the directory of the keys."""
    text = (
        (DEPLOY / "README.md")
        .read_text(encoding="utf-8")
        .partition(f"\n## {section}\n")[2]
        .partition("\n## ")[0]
    )
    commands = re.findall(r"^\$ (angarium keys .*|mkdir .*)$", text, flags=re.MULTILINE)
    assert commands, f"{section} makes no keys"
    folder.mkdir()
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "angarium":
            done = server.run(arguments, environment=launch.environment(), timeout_s=60, cwd=folder)
            assert done.returncode == 0, done.stderr
        else:
            subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder / "keys"


def hosts(folder: Path, server: CommandServer) -> dict[str, str]:
    """Give the files of the worked example by node."""
    make_keys("Three hosts", folder / "etc", server)
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted((DEPLOY / "hosts").glob("*.toml"))}


def compose(folder: Path, server: CommandServer) -> dict[str, str]:
    """Give the file of each service, with the secrets that the service has where it has them."""
    keys = make_keys("Containers", folder / "made", server)
    project = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text(encoding="utf-8"))
    text = (DEPLOY / "container" / project["configs"]["node.toml"]["file"]).read_text(encoding="utf-8")
    found = {}
    for name, service in project["services"].items():
        mounted = folder / "etc" / name
        mounted.mkdir(parents=True)
        for one in service["secrets"]:
            source, target = (one, one) if isinstance(one, str) else (one["source"], one["target"])
            shutil.copy(keys / Path(project["secrets"][source]["file"]).name, mounted / target)
        found[name] = f'[node]\nname = "{service["hostname"]}"\n' + text.replace("/run/secrets", str(mounted))
    return found


def kubernetes(folder: Path, server: CommandServer) -> dict[str, str]:
    """Give the file of each pod; all have the same secrets."""
    keys = make_keys("Kubernetes", folder / "made", server)
    text = (DEPLOY / "kubernetes" / "angarium.yaml").read_text(encoding="utf-8")
    manifests = {one["kind"]: one for one in yaml.safe_load_all(text)}
    config = manifests["ConfigMap"]["data"]["node.toml"].replace("/etc/angarium/secrets", str(keys))
    (folder / "etc").mkdir()
    pods = [f"angarium-{number}" for number in range(manifests["StatefulSet"]["spec"]["replicas"])]
    return {pod: f'[node]\nname = "{pod}"\n{config}' for pod in pods}


def on_loopback(texts: dict[str, str]) -> dict[str, str]:
    """Give the files with addresses of this host."""
    places: dict[str, str] = {}
    with ExitStack() as stack:
        for name, text in texts.items():
            port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            links = re.findall(r'node = "(.+)"\naddresses = \["(tls://.+)"\]', text)
            places[dict(links)[name]] = f"tls://127.0.0.1:{port}"
    changed = {}
    for (name, text), place in zip(texts.items(), places.values(), strict=True):
        text = re.sub(r'(\[health\]\nlisten = )\["tcp://.+"\]', r'\1["tcp://127.0.0.1:0"]', text)
        text = re.sub(r'(\[router\]\nlisten = )\["tls://.+"\]', rf'\1["{place}"]', text)
        text = text.replace("drain_ms = 5000", "drain_ms = 0")  # nobody has to notice
        for address, here in places.items():
            text = text.replace(address, here)
        changed[name] = text
    return changed


@pytest.fixture
def nodes(
    request: pytest.FixtureRequest, tmp_path: Path, commands: CommandServer
) -> Iterator[dict[str, Node]]:
    files = on_loopback(request.param(tmp_path, commands))
    found = {}
    for name, text in files.items():
        config = tmp_path / "etc" / f"{name}.toml"
        config.write_text(text, encoding="utf-8")
        assert check_config(config) == []
        found[name] = Node(tmp_path / name, workers=1, listen=None, config=config)
    with ExitStack() as stack:
        with ThreadPoolExecutor(len(found)) as pool:
            list(pool.map(stack.enter_context, found.values()))
        yield found


@pytest.mark.parametrize("nodes", short([hosts], long=[hosts, compose, kubernetes]), indirect=True)
def test_three_nodes_start_with_the_files_and_are_joined(nodes: dict[str, Node]) -> None:
    assert len(nodes) == 3
    deadline = time.monotonic() + DEADLINE_S
    for name, node in nodes.items():
        while True:
            rows: list[dict[str, Any]] = [
                json.loads(line) for line in node.run("link", "list", "--json").splitlines()
            ]
            assert {row["name"] for row in rows} == set(nodes) - {name}
            if all(row["state"] == "up" for row in rows):
                break
            assert time.monotonic() < deadline, rows
            time.sleep(0.1)
        while not is_ready(node):
            assert time.monotonic() < deadline, f"{name} is not ready"
            time.sleep(0.1)
        told = node.output() + "".join(
            node.run(*command) for command in (("config", "show"), ("events",), ("status",))
        )
        assert [secret for secret in secrets_of(node) if secret in told] == []


@pytest.mark.parametrize("made", [hosts, compose, kubernetes])
def test_each_file_is_valid_and_its_certificate_good_for_the_address_of_its_node(
    made: Callable[[Path, CommandServer], dict[str, str]], tmp_path: Path, commands: CommandServer
) -> None:
    files = made(tmp_path, commands)
    for name, text in files.items():
        file = tmp_path / "etc" / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        assert check_config(file) == []
        config = tomllib.loads(text)
        (address,) = [url for link in config["links"] if link["node"] == name for url in link["addresses"]]
        cert = read_certificates(tmp_path / "etc" / config["router"]["tls_cert_file"])[0]
        assert address.removeprefix("tls://").rpartition(":")[0] in names_of(cert)
        assert name in names_of(cert), "neighbours know it by that"


def is_ready(node: Node) -> bool:
    """Tell whether the node says that it is ready; its command ends with 1 while it does not."""
    try:
        return json.loads(node.run("health", "--json"))["ready"] is True
    except NodeFailedError:
        return False


def secrets_of(node: Node) -> list[str]:
    """Give every secret that was made for the test: keys, the secret of the cluster, the password."""
    files = [
        *node.data.parent.rglob("*.key"),
        *node.data.parent.rglob("*.secret"),
        *node.data.parent.rglob("*.password"),
    ]
    found = [max(file.read_text(encoding="ascii").split("\n"), key=len) for file in files]
    assert len(found) >= 3
    assert all(len(secret) >= 40 for secret in found)
    return found
