"""What commands show and ask in a terminal, and what they do where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command_shell import Shell

pytestmark = pytest.mark.slow


@pytest.fixture
def queue(shell: Shell) -> Iterator[str]:
    name = "billing/of-everything-that-is-sold-in/the-north-and-the-south"
    shell.run("queue", "create", name, "--subscription", "sold/>")
    shell.run("pub", "sold/1", "x", "--count", "5", "--mode", "persistent")
    yield name
    shell.run("queue", "delete", name, "--yes")


def test_a_table_is_the_same_in_a_terminal_and_in_a_pipe(shell: Shell, queue: str) -> None:
    piped = shell.run("queue", "list").lines
    with terminal(shell, "queue", "list") as shown:
        seen = shown.end().splitlines()
    assert seen[: len(piped)] == piped
    assert piped[0].split()[:2] == ["NAME", "MESSAGES"]
    assert all(len(line) <= 80 for line in piped)
    assert any(line.startswith(f"{queue} ") for line in piped)
    assert "(no room for" in seen[-1]
    assert {"#DEAD_MSG_QUEUE", queue} <= set(shell.run("queue", "ls", "-o", "name").lines)
    assert shell.run("queue", "info", queue, "-o", "json").object["messages_spooled"] == 5


def test_a_status_fits_a_terminal(shell: Shell) -> None:
    with terminal(shell, "status") as shown:
        lines = shown.end().splitlines()
    assert len(lines) <= 23
    assert all(len(line) <= 80 for line in lines)
    assert any(line.startswith("errors ") for line in lines)


def test_a_purge_says_what_is_lost_and_asks_in_a_terminal(shell: Shell, queue: str) -> None:
    with terminal(shell, "queue", "purge", queue, ANGARIUM_YES="") as asked:
        asked.wait_for("[y/N]:")
        assert f"Delete 5 messages of queue {queue}?" in asked.text
        asked.press("n\n")
        assert "nothing was changed" in asked.end(status=1)
    assert shell.run("queue", "show", queue, "--json").object["messages_spooled"] == 5
    with terminal(shell, "queue", "purge", queue, ANGARIUM_YES="") as asked:
        asked.wait_for("[y/N]:")
        asked.press("y\n")
        assert f"5 messages of queue {queue} deleted" in asked.end()


def test_where_nobody_can_be_asked_a_purge_wants_yes(
    shell: Shell, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shell.environment, "ANGARIUM_YES", "")
    refused = shell.run("queue", "purge", queue, status=2)
    assert "--yes (or ANGARIUM_YES=1)" in refused.err
    assert shell.run("queue", "show", queue, "--json").object["messages_spooled"] == 5
    assert shell.run("queue", "purge", queue, "-y").lines == [f"5 messages of queue {queue} deleted"]


def test_a_subscriber_says_what_it_does_in_a_terminal(shell: Shell) -> None:
    with terminal(shell, "sub", "told/>", "-n", "1") as shown:
        shown.wait_for("subscribed to told/> at tcp://127.0.0.1:")
        shell.run("pub", "told/1", "hello")
        shown.wait_for("told/1 hello")
        assert "received 1 message in" in shown.end()
    with terminal(shell, "sub", "told/>", "--idle-timeout", "0.1", "-q") as shown:
        assert shown.end() == ""


def test_wildcards_of_other_brokers_are_hinted_at(shell: Shell) -> None:
    found = shell.run("sub", "orders/#", "--idle-timeout", "0.1", "--json")
    assert found.lines == []
    assert found.err.startswith("hint: '#' is no wildcard here: did you mean 'orders/>'?\n")
    assert shell.run("sub", "orders/#", "--idle-timeout", "0.1", "-q").err == ""
    made = shell.run("queue", "create", "nats", "--subscription", "orders.>", "--json")
    assert made.object["subscriptions"] == ["orders.>"]
    assert "did you mean 'orders/>'?" in made.err
    assert "'>' is no wildcard for pub" in shell.run("pub", "a/>", "x").err
    shell.run("queue", "delete", "nats")


@pytest.mark.long  # a subscriber and `top` say there how far they are
def test_a_benchmark_shows_how_far_it_is_in_a_terminal(shell: Shell) -> None:
    arguments = ("bench", "latency", "--messages", "600", "--rate", "200")
    with terminal(shell, *arguments) as shown:
        shown.wait_for("publishing")
        shown.wait_for("/600")
        shown.end()


def test_top_shows_what_each_object_does_and_leaves_it_on_the_screen(shell: Shell, queue: str) -> None:
    with terminal(shell, "top", "--interval", "0.2") as shown:
        shown.wait_for("worker.0")
        shown.press("2")
        shown.wait_for(queue)
        shown.press("s")
        shown.wait_for("queues by in, down")
        shown.press("3")
        shown.wait_for("there are no clients")
        shown.press("h")
        shown.wait_for("h or ?      this help, and back")
        shown.press("1q")  # as fast as fingers are, both keys count
        shown.end()
    _, _, left = shown.raw.rpartition("\x1b[?1049l")
    assert "worker.0" in left
    assert "\x1b[?25h" in shown.raw, "the cursor is back"


def test_top_prints_plainly_where_there_is_no_terminal(shell: Shell, queue: str) -> None:
    lines = shell.run("top", "queues", "--interval", "0.1").lines
    assert any(line.startswith(f"{queue} ") for line in lines)
    rows = shell.run("top", "queues", "--interval", "0.1", "-n", "1", "--json").rows
    assert {row["name"]: row["in_per_s"] for row in rows}[queue] == 0.0
