"""Jobs of the pipeline ask the node before Spark starts: without Java, what the node refuses comes first."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium.pipeline.session import less_noise
from angarium_server.testing import Node
from cluster.commands.cli import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R221")]

JOBS = {
    "archive": ["archive", "archive", "--queue", "{}"],
    "report": ["report", "--queue", "{}"],
    "live report": ["report", "--follow", "--consume", "--queue", "{}"],
    "replay": ["replay", "archive", "--queue", "{}"],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("asked") / "data") as node:
        node.run("queue", "create", "orders")
        node.run("username", "create", "guest")
        yield node


@pytest.fixture(autouse=True)
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], job: str, queue: str, url: str, *more: str) -> str:
    arguments = [part.format(queue) for part in JOBS[job]]
    assert run(["pipeline", *arguments, "--url", url, *more]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_the_node_lets_pass_comes_to_spark(
    node: Node, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"error {errors.NOT_INSTALLED}" in refused(capsys, job, "orders", node.url)


@pytest.mark.parametrize("job", JOBS)
def test_a_queue_that_is_unknown_is_said_first(
    node: Node, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(capsys, job, "oders", node.url)
    assert "queue oders" in text
    assert str(errors.NOT_INSTALLED) not in text


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ("archive", errors.PERMISSION_DENIED),
        ("report", errors.PERMISSION_DENIED),
        ("replay", errors.NOT_INSTALLED),
    ],
)
def test_who_may_not_read_a_queue_may_still_send_to_it(
    node: Node, job: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"error {code}" in refused(capsys, job, "orders", node.url, "--user", "guest")


@pytest.mark.parametrize("job", JOBS)
def test_where_nobody_listens_a_job_does_not_wait(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    text = refused(capsys, job, "orders", f"tcp://127.0.0.1:{port}", "--timeout", "600")
    assert f"tcp://127.0.0.1:{port}: nobody listens there" in text


def test_what_a_process_says_passes_but_for_what_every_jvm_says(capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "Warning: Java versions > Java 11 can only operate in restricted mode where no off-heap operations are",
        "spark ERROR Executor: Java heap space",
        "WARNING: Using too much of everything",
    ]
    code = f"import sys; sys.stderr.write({chr(10).join(lines)!r})"
    with less_noise():
        process = subprocess.Popen([sys.executable, "-c", code])
    os.write(2, b"ours\n")
    assert process.wait(30) == 0
    # A line that its process did not end comes when the process has ended.
    found = ""
    for _ in range(600):
        found += capfd.readouterr().err
        if "too much" in found:
            break
        time.sleep(0.05)
    assert sorted(found.splitlines()) == sorted([*lines[2:], "ours"])
