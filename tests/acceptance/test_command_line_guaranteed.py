"""`angarium pub` of guaranteed messages and `angarium consume`, as scripts use them."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command_shell import Shell
from tests.waiting import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture
def queue(shell: Shell, request: pytest.FixtureRequest) -> str:
    """An empty queue that no other test uses."""
    name = request.node.name.replace("[", "-").strip("]")[:100]
    shell.run("queue", "create", name)
    return str(name)


def lines_file(shell: Shell, count: int, name: str = "lines") -> Path:
    path = shell.folder / name
    path.write_text("".join(f"line {number}\n" for number in range(count)))
    return path


def bind(shell: Shell, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a `consume` and give it when it is bound."""
    ready = shell.folder / "consume.ready"
    ready.unlink(missing_ok=True)
    process = shell.start("consume", *arguments, "--ready-file", str(ready))
    shell.wait_for_file(ready, process)
    return process


# pub.


@pytest.mark.requirement("R277")
def test_what_is_acknowledged_and_went_to_no_queue_is_counted(shell: Shell, queue: str) -> None:
    done = shell.run("pub", f"nobody/{queue}/{{line}}", "--count", "300", "--mode", "persistent", "--json")
    assert done.object.items() >= {"acknowledged": 300, "unroutable": 300, "nacked": 0}.items()
    assert "unroutable: 300 acknowledged, but no queue took them: none subscribes to the topic" in done.err
    taken = shell.run("pub", queue, "--queue", "--json")
    assert taken.object.items() >= {"acknowledged": 1, "unroutable": 0}.items()
    assert "unroutable" not in taken.err


@pytest.mark.requirement("R163")
def test_lines_are_published_acknowledged_and_consumed_in_order(shell: Shell, queue: str) -> None:
    path = lines_file(shell, 1_500)
    acked = shell.folder / "acked"
    acked.unlink(missing_ok=True)
    done = shell.run("pub", queue, "--queue", "--lines", str(path), "--acked-file", str(acked), "--json")
    assert done.object.items() >= {"published": 1_500, "acknowledged": 1_500, "nacked": 0}.items()
    assert done.object["seconds"] > 0
    assert acked.read_text().split() == [str(number) for number in range(1_500)]
    consumed = shell.run("consume", queue, "--count", "1500", "--raw")
    assert consumed.lines == path.read_text().splitlines()
    assert shell.run("consume", queue, "--count", "1", "--idle-timeout", "0.5", status=1).out == b""


def test_a_queue_option_and_its_modes(shell: Shell, queue: str) -> None:
    shell.run("pub", queue, "one", "--queue")
    shell.run("pub", queue, "two", "--queue", "--mode", "non-persistent")
    shell.run("pub", f"#P2P/QUE/{queue}", "three", "--mode", "persistent")
    rows = shell.run("consume", queue, "--count", "3", "--json").rows
    assert [(row["payload"], row["mode"]) for row in rows] == [
        ("one", "persistent"),
        ("two", "non-persistent"),
        ("three", "persistent"),
    ]


@pytest.mark.requirement("R156")
def test_a_subscriber_sees_its_copy_of_a_guaranteed_message_as_direct(shell: Shell) -> None:
    shell.run("queue", "create", "copied", "--subscription", "copied/>")
    subscriber = shell.subscribe("copied/>", "--count", "2", "--json")
    for mode in ("persistent", "non-persistent"):
        shell.run("pub", "copied/a", mode, "--mode", mode)
    assert [(row["payload"], row["mode"]) for row in shell.finish(subscriber).rows] == [
        ("persistent", "direct"),
        ("non-persistent", "direct"),
    ]
    kept = shell.run("consume", "copied", "--count", "2", "--json").rows
    assert [row["mode"] for row in kept] == ["persistent", "non-persistent"]


def test_options_of_a_message_reach_its_consumer(shell: Shell, queue: str) -> None:
    options = ["--cos", "3", "--priority", "7", "--ttl-ms", "60000", "--dmq-eligible", "--property", "n=1"]
    options += ["--reply-to", "a/b", "--correlation-id", "c", "--partition-key", "k{line%3}"]
    shell.run("pub", queue, "x", "--queue", "--count", "2", *options)
    first, second = shell.run("consume", queue, "--count", "2", "--json").rows
    expected = {
        "topic": f"#P2P/QUE/{queue}",
        "payload": "x",
        "cos": 3,
        "priority": 7,
        "ttl_ms": 60_000,
        "dmq_eligible": True,
        "properties": {"n": 1},
        "reply_to": "a/b",
        "correlation_id": "c",
        "partition_key": "k0",
        "position": 1,
        "partition": 0,
        "redelivered": False,
        "delivery_count": 1,
        "origin": None,
    }
    assert first.items() >= expected.items()
    assert (second["partition_key"], second["position"]) == ("k1", 2)
    assert abs(first["stored_ms"] - time.time() * 1000) < 60_000


@pytest.mark.long  # tests/integration/test_guaranteed_lives.py has delays
def test_a_delayed_message_comes_later(shell: Shell, queue: str) -> None:
    consumer = bind(shell, queue, "--count", "2", "--raw")
    # Longer than a command takes on a busy machine.
    shell.run("pub", queue, "later", "--queue", "--delay-ms", "5000")
    shell.run("pub", queue, "now", "--queue")
    assert shell.finish(consumer).lines == ["now", "later"]


@pytest.mark.requirement("R177")
def test_what_is_refused_is_told_counted_and_not_in_the_acked_file(shell: Shell) -> None:
    shell.run("queue", "create", "narrow", "--set", "max_message_bytes=10")
    path = shell.folder / "mixed"
    path.write_text("short\nmuch too long for it\nshort\n")
    acked = shell.folder / "acked-mixed"
    arguments = ["--queue", "--lines", str(path), "--acked-file", str(acked)]
    done = shell.run("pub", "narrow", *arguments, "--json", status=1)
    assert done.object.items() >= {"published": 3, "acknowledged": 2, "nacked": 1}.items()
    assert "error 40007" in done.err
    assert acked.read_text().split() == ["0", "2"]
    shell.run("queue", "delete", "narrow")


def test_a_named_producer_goes_on_where_it_was(shell: Shell, queue: str) -> None:
    for start in (0, 3):
        path = shell.folder / "named"
        path.write_text("".join(f"{number}\n" for number in range(start, start + 3)))
        shell.run("pub", queue, "--queue", "--lines", str(path), "--producer", "nightly")
    assert shell.run("consume", queue, "--count", "6", "--raw").lines == [str(n) for n in range(6)]


def test_a_topic_that_nobody_wants_is_acknowledged(shell: Shell) -> None:
    done = shell.run("pub", "nobody/wants/this", "x", "--mode", "persistent", "--count", "10", "--json")
    assert done.object.items() >= {"acknowledged": 10, "nacked": 0}.items()


def test_what_does_not_go_together_is_misuse(shell: Shell) -> None:
    for wrong in (
        ["pub", "a", "x", "--mode", "direct", "--producer", "p"],
        ["pub", "a", "x", "--mode", "direct", "--acked-file", "f"],
        ["pub", "a", "x", "--mode", "eternal"],
        ["pub", "a", "x", "--retry-for", "0"],
        ["pub", "a{line%0}", "x"],
        ["pub", "a", "x", "--partition-key", "{line%0}"],
        ["consume", "q", "--raw", "--json"],
        ["consume", "q", "--topic", "a"],
        ["consume", "q", "--settle", "forget"],
        ["consume", "q", "--window", "0"],
    ):
        shell.run(*wrong, status=2)


# consume.


@pytest.mark.requirement("R150")
def test_browsing_leaves_everything_and_settling_does_not(shell: Shell, queue: str) -> None:
    shell.run("pub", queue, "--queue", "--lines", str(lines_file(shell, 10)))
    seen = shell.run("consume", queue, "--browse", "--idle-timeout", "3", "--raw").lines
    assert len(seen) == 10
    assert shell.run("consume", queue, "--browse", "--count", "3", "--raw").lines == seen[:3]
    kept = shell.run("consume", queue, "--no-ack", "--count", "4", "--raw").lines
    assert kept == seen[:4]
    again = shell.run("consume", queue, "--count", "4", "--json").rows
    assert [row["redelivered"] for row in again] == [True] * 4
    rest = shell.run("consume", queue, "--count", "6", "--json").rows
    assert [row["payload"] for row in rest] == seen[4:]
    assert not any(row["redelivered"] for row in rest), "who wants four takes four"


def test_rejected_messages_go_to_the_dead_message_queue(shell: Shell, queue: str) -> None:
    shell.run("queue", "create", f"{queue}-dead")
    shell.run("queue", "update", queue, "--set", f"dead_message_queue={queue}-dead")
    shell.run("pub", queue, "bad", "--queue")
    shell.run("consume", queue, "--count", "1", "--settle", "reject")
    (corpse,) = shell.run("consume", f"{queue}-dead", "--count", "1", "--json").rows
    assert corpse["payload"] == "bad"
    assert corpse["origin"] == {"kind": "queue", "name": queue, "reason": "rejected"}


def test_a_consumer_that_stands_by_says_so_and_takes_over(shell: Shell, queue: str) -> None:
    first = bind(shell, queue, "--count", "1")
    second = bind(shell, queue, "--count", "1")
    shell.run("pub", queue, "one", "--queue")
    assert "standing by" not in shell.finish(first).err
    shell.run("pub", queue, "two", "--queue")
    done = shell.finish(second)
    assert done.out.endswith(b" two\n")
    told = [line.partition(":")[0] for line in done.err.splitlines() if not line.startswith("consuming ")]
    assert told == ["standing by", "active"]


def test_failed_messages_come_again(shell: Shell, queue: str) -> None:
    shell.run("pub", queue, "shaky", "--queue")
    rows = shell.run("consume", queue, "--count", "3", "--settle", "fail", "--json", "--window", "1").rows
    assert [row["delivery_count"] for row in rows] == [1, 2, 3]
    assert shell.run("consume", queue, "--count", "1", "--raw").lines == ["shaky"]


@pytest.mark.requirement("R140")
def test_a_selector_takes_what_it_holds_for(shell: Shell, queue: str) -> None:
    for number in range(4):
        shell.run("pub", queue, f"{number}", "--queue", "--property", f"n={number}")
    taken = shell.run("consume", queue, "--selector", "n >= 2", "--count", "2", "--raw").lines
    assert taken == ["2", "3"]
    assert "error 40601" in shell.run("consume", queue, "--selector", "n >=", status=1).err


@pytest.mark.requirement("R121")
def test_a_topic_endpoint_gets_its_topic_from_its_consumer(shell: Shell) -> None:
    shell.run("topic-endpoint", "create", "te")
    consumer = bind(shell, "te", "--topic-endpoint", "--topic", "news/>", "--count", "1")
    shell.run("pub", "news/today", "good", "--mode", "persistent")
    assert shell.finish(consumer).lines == ["news/today good"]


def test_consuming_what_does_not_exist_fails(shell: Shell) -> None:
    assert "error 40404" in shell.run("consume", "there is no such queue", status=1).err


def test_an_interrupted_consumer_says_how_far_it_came(shell: Shell, queue: str) -> None:
    consumer = bind(shell, queue, "--raw")
    shell.run("pub", queue, "x", "--queue", "--count", "5")
    assert consumer.stdout is not None
    got = b"".join(consumer.stdout.readline() for _ in range(5))
    assert got == b"x\n" * 5
    consumer.send_signal(signal.SIGINT)
    done = shell.finish(consumer)
    assert "consumed 5 messages" in done.err
    assert shell.run("consume", queue, "--idle-timeout", "0.3").out == b"", "they were accepted"


# Over restarts.


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[Shell]:
    """A node of the test's own, to be killed."""
    shell = Shell(tmp_path)
    shell.run("up", "--detach", "--workers", "2", "--listen", "tcp://127.0.0.1:0")
    yield shell
    shell.run("down")
    shell.clear()


@pytest.mark.long  # tests/crash publishes while each of them dies
@pytest.mark.requirement("R96", "R190")
@pytest.mark.timeout(240)
def test_lines_go_on_over_the_death_of_every_process_and_of_the_node(own_node: Shell) -> None:
    """Each line is stored once, in order, and the acked file names each once."""
    shell, count = own_node, 6_000
    shell.run("queue", "create", "q")
    path, acked = lines_file(shell, count), shell.folder / "acked"
    arguments = ["--queue", "--lines", str(path), "--producer", "p", "--retry-for", "60", "--json"]
    publisher = shell.start("pub", "q", *arguments, "--acked-file", str(acked), "--rate", "1500")

    def has_progressed(lines: int) -> bool:
        return acked_lines(acked) >= lines

    for number, role in enumerate(("worker", "router", "worker", "controller", "supervisor")):
        wait_until(partial(has_progressed, 700 * (number + 1)), "progress")
        signal_all(wait_until(partial(pids_of, shell, role), f"{role} runs"))
    shell.run("up", "--detach")
    done = shell.finish(publisher)
    assert done.object.items() >= {"published": count, "acknowledged": count, "nacked": 0}.items()
    assert acked.read_text().split() == [str(number) for number in range(count)]
    consumed = shell.run("consume", "q", "--count", str(count), "--raw")
    assert consumed.lines == path.read_text().splitlines()


def test_a_node_that_never_comes_back_is_given_up(own_node: Shell) -> None:
    shell = own_node
    shell.run("queue", "create", "q")
    acked = shell.folder / "acked"
    arguments = ["--queue", "--lines", str(lines_file(shell, 50_000)), "--retry-for", "2", "--rate", "1000"]
    publisher = shell.start("pub", "q", *arguments, "--acked-file", str(acked), "--json")
    wait_until(lambda: acked_lines(acked) > 500, "progress")
    shell.run("down")
    done = shell.finish(publisher, status=1)
    assert 500 < done.object["acknowledged"] == acked_lines(acked) < 50_000
    assert "error " in done.err
    shell.run("up", "--detach")


def pids_of(shell: Shell, role: str) -> list[int]:
    """Give the processes of a role, none while the controller is away."""
    asked = shell.ask("status", "--json")
    if asked.returncode:
        return []
    processes = json.loads(asked.stdout)["processes"]
    return [one["pid"] for one in processes if one["role"] == role and one["pid"]]


def acked_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def signal_all(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
