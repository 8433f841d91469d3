"""The views of `angarium top`: rates, order, keys, and how much of it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from angarium import errors
from cluster.commands.node import top as show
from cluster.commands.node.top_view import CLIENTS, HELP, PROCESSES, QUEUES, VIEWS, Top
from cluster.commands.terminal.screen import keys

if TYPE_CHECKING:
    from cluster.admin.client import Admin

Row = dict[str, Any]


def status(*processes: Row) -> Row:
    return {
        "node": "berlin",
        "uptime_s": 517.0,
        "sessions": 3,
        "subscriptions": 7,
        "processes": list(processes),
        "rates": {"messages_in_per_s": 20_000.0, "bytes_in_per_s": 2_500_000.0, "messages_out_per_s": 5.0},
        "spool": {"messages": 12, "usage_bytes": 2048},
    }


def process(role: str, index: int, cpu: float | None = 1.0) -> Row:
    found = {"role": role, "index": index, "pid": 100 + index, "state": "ready", "cpu_percent": cpu}
    return {**found, "rss_bytes": 1 << 20, "uptime_s": 9.0, "restarts": 0}


def queue(name: str, stored: int, settled: int, **more: Any) -> Row:
    found = {"kind": "queue", "vpn": "default", "name": name, "messages_spooled": stored - settled}
    metrics = {"spool_usage_bytes": 10, "delivered_unacked": 0, "bind_count": 1}
    return {**found, **metrics, "total_messages_spooled": stored, "confirmed_delivered": settled, **more}


def client(name: str, messages_in: int, discards: int = 0) -> Row:
    metrics = {"queued_messages": 0, "subscriptions": 1, "flows": 0, "slow": False, "uptime_s": 5.0}
    counts = {"counters": {"messages_in": messages_in}, "discards": {"discard.x": discards}}
    return {"vpn": "default", "name": name, **metrics, **counts}


def names(top: Top) -> list[str]:
    return [row[VIEWS[top.view].columns[0]] for row in top.sorted_rows()]


def test_a_rate_is_what_came_between_two_looks() -> None:
    top = Top(QUEUES)
    top.look(status(), [queue("orders", 100, 40)], 10.0)
    assert [row["in_per_s"] for row in top.rows] == [None]
    top.look(status(), [queue("orders", 1_100, 540), queue("new", 5, 0)], 12.0)
    assert (top.rows[0]["in_per_s"], top.rows[0]["out_per_s"]) == (500.0, 250.0)
    assert top.rows[1]["in_per_s"] is None, "it was not there before"
    top.look(status(), [queue("orders", 7, 0)], 13.0)
    assert top.rows[0]["in_per_s"] is None, "its totals began again"


def test_queues_of_two_message_vpns_are_not_mixed_up() -> None:
    top = Top(QUEUES)
    here, there = queue("q", 10, 0), queue("q", 1_000, 0, vpn="other")
    top.look(status(), [here, there], 0.0)
    top.look(status(), [there, {**here, "total_messages_spooled": 20}], 1.0)
    assert [row["in_per_s"] for row in top.rows] == [0.0, 10.0]


def test_clients_are_ordered_by_what_they_publish() -> None:
    top = Top(CLIENTS)
    top.look(status(), [client("a", 0), client("b", 0), client("c", 0, 5)], 0.0)
    top.look(status(), [client("a", 5), client("b", 50), client("c", 5, 7), client("d", 9)], 1.0)
    assert names(top) == ["b", "a", "c", "d"], "one without a rate comes last"
    assert top.rows[2]["discarded_per_s"] == 2.0


def test_processes_are_ordered_by_name_and_numbers_count_as_numbers() -> None:
    rows = [process("worker", 10), process("worker", 2, cpu=9.0), process("router", 0, cpu=None)]
    top = Top(PROCESSES)
    top.look(status(*rows), rows, 0.0)
    assert names(top) == ["router", "worker.2", "worker.10"]
    for _ in range(3):
        top.press("s")
    assert "by cpu, down" in top.lines(80, 24)[-1]
    assert names(top) == ["worker.2", "worker.10", "router"]
    top.press("r")
    assert names(top) == ["worker.10", "worker.2", "router"]
    top.press("left")
    assert "by state, up" in top.lines(80, 24)[-1]


def test_keys_that_come_together_are_told_apart() -> None:
    assert keys("1q") == ["1", "q"]
    assert keys("\x1b[C\x1bODs\x1b[1;5A\x1b[3~\x1b") == ["right", "left", "s", "up", "", "\x1b"]


def test_keys_change_the_view_and_ask_for_another_look() -> None:
    top = Top(PROCESSES)
    top.look(status(), [], 0.0)
    assert top.press("2")
    assert top.view == QUEUES
    assert not top.press("n"), "it is this view already"
    assert top.press("c")
    assert top.view == CLIENTS
    assert top.press("p")
    assert not top.press("x"), "a key that means nothing"
    top.press("h")
    assert top.lines(80, 24) == list(HELP)
    top.press("?")
    assert top.lines(80, 24)[-1].startswith("processes by process, up | 1 2 3 view")


@pytest.mark.parametrize("view", list(VIEWS))
@pytest.mark.parametrize("count", [0, 3, 200])
def test_a_screen_is_never_too_small(view: str, count: int) -> None:
    made = {
        PROCESSES: [process("worker", n) for n in range(count)],
        QUEUES: [queue(f"orders/{n}", n, 0) for n in range(count)],
        CLIENTS: [client(f"vm/default/{n:010x}", n) for n in range(count)],
    }
    top = Top(view)
    for now in (0.0, 1.0):
        top.look(status(*made[PROCESSES]), made[view], now, left_out=7 if count == 200 else 0)
    lines = top.lines(80, 24)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0] == "node berlin, up 8m37s, 3 clients, 7 subscriptions"
    assert lines[1] == "in 20,000/s (2.4 MiB/s), out 5/s (0 B/s), 12 messages stored (2.0 KiB)"
    assert any("q quit" in line for line in lines)
    shown = {0: f"there are no {view}", 3: "", 200: f"and 189 more {view}"}[count]
    assert any(shown in line for line in lines), lines


def test_help_and_quit_stay_however_narrow_the_terminal() -> None:
    top = Top(QUEUES)
    top.look(status(), [], 0.0)
    assert top.lines(100, 24)[-1].startswith("queues by messages, down | 1 2 3 view")
    for width in range(16, 100):
        footer = top.lines(width, 24)[-1]
        assert len(footer) <= width
        assert footer.endswith("h help  q quit")
    assert top.lines(8, 24)[-1] == "h q"


def test_processes_that_are_not_ready_are_counted_in_every_view() -> None:
    top = Top(CLIENTS)
    top.look(status(process("router", 0), {**process("worker", 0), "state": "hung"}), [], 0.0)
    assert "1 of 2 processes not ready !" in top.lines(80, 24)[0]


class Restarting:
    """An admin API whose controller is away at one of the calls; the first of it is 1."""

    def __init__(self, away_at: int, code: int = errors.CONTROLLER_UNAVAILABLE) -> None:
        self.calls, self.away_at, self.code = 0, away_at, code

    def call(self, _operation: str, **_arguments: Any) -> Row:
        self.calls += 1
        if self.calls == self.away_at:
            raise errors.error_for(self.code)
        return status(process("router", 0))


def looked(node: Restarting, count: int) -> None:
    show._print_rows(cast("Admin", node), PROCESSES, 0.0, count)


def test_who_looks_goes_on_when_the_controller_is_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    looked(Restarting(away_at=2), 3)
    told = capsys.readouterr()
    assert told.out.count('"node":"berlin"') == 2
    assert "no answer, asking again: " in told.err
    assert "there are answers again" in told.err


@pytest.mark.parametrize(
    "node", [Restarting(1), Restarting(2, errors.UNAUTHORIZED)], ids=["nobody there", "refused"]
)
def test_who_never_had_an_answer_or_is_refused_hears_why(node: Restarting) -> None:
    with pytest.raises(errors.AngariumError):
        looked(node, 3)


def test_a_screen_says_that_nobody_answers_until_somebody_does() -> None:
    top = Top(PROCESSES)
    top.look(status(process("router", 0)), [process("router", 0)], 1.0)
    top.note("no answer, asking again")
    assert "no answer, asking again" in top.lines(80, 24)
    top.look(status(process("router", 0)), [process("router", 0)], 2.0)
    assert "no answer, asking again" not in top.lines(80, 24)
