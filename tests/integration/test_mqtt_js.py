"""Clients of mqtt.js in Node, as they are: both versions, by TCP and WebSocket.

They need Node and its package: `npm install --prefix FOLDER mqtt`, and NODE_PATH=FOLDER/node_modules.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from angarium import blocking
from angarium_server.testing import Node
from tests.integration.mqtt_clients import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

SCRIPT: Final = Path(__file__).with_name("mqtt_client.js")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if shutil.which("node") is None:
        pytest.skip("there is no Node here")
    if subprocess.run(["node", "-e", "require('mqtt')"], capture_output=True, check=False).returncode:
        pytest.skip("the package mqtt of Node is not in NODE_PATH")
    folder = tmp_path_factory.mktemp("js")
    file = folder / "node.toml"
    file.write_text("[mqtt]\nlisten = ['tcp://127.0.0.1:0', 'ws://127.0.0.1:0']\n")
    with Node(folder / "data", workers=1, config=file) as made:
        yield made


@pytest.mark.requirement("R234")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("address", [0, 1], ids=["tcp", "ws"])
def test_it_subscribes_and_publishes_and_leaves(node: Node, address: int, version: int) -> None:
    url = node.status()["mqtt"][address].replace("tcp://", "mqtt://")
    command = ["node", str(SCRIPT), url, str(version)]
    with (
        blocking.connect(node.url) as ours,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as theirs,
    ):
        try:
            assert theirs.stdout is not None
            assert theirs.stdout.readline() == "ready\n"
            answers = ours.subscribe("from/js")
            for number in range(100):
                ours.publish("to/js", b"%d" % number, properties={"n": str(number)})
            got = [answers.receive(LIMIT_S) for _ in range(100)]
            assert [one.payload for one in got] == [b"%d" % number for number in range(100)]
            told = [one.properties for one in got]
            assert told == ([{"n": str(number)} for number in range(100)] if version == 5 else [{}] * 100)
            ours.publish("to/js", b"end")
            assert theirs.wait(LIMIT_S) == 0
        finally:
            theirs.kill()
