"""Events: the ring, and the file behind it."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from cluster.controller.switchboard.events import EventFile, EventRing

if TYPE_CHECKING:
    from pathlib import Path


def event(second: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "time": f"2031-05-04T10:00:{second:02}.000Z",
        "severity": "info",
        "scope": "SYSTEM",
        "event": "X",
        "text": "x",
        **more,
    }


def filled(count: int, size: int = 100) -> EventRing:
    ring = EventRing(size, [])
    for second in range(count):
        ring.add(event(second))
    ring.validate()
    return ring


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [one["id"] for one in found]


def test_ids_rise_by_one_and_are_ours() -> None:
    ring = EventRing(10, [])
    assert ring.add(event(id=77))["id"] == 1
    assert ring.add(event())["id"] == 2


def test_the_oldest_event_goes_first() -> None:
    assert ids(filled(12, size=10).find(None, 100)) == list(range(3, 13))


def test_without_since_the_newest_come_oldest_first() -> None:
    assert ids(filled(10).find(None, 3)) == [8, 9, 10]


def test_after_an_id_the_next_ones_come_first() -> None:
    assert ids(filled(10).find(4, 3)) == [5, 6, 7]
    assert filled(10).find(10, 3) == []


def test_from_a_time_on_that_moment_belongs_to_it() -> None:
    ring = filled(10)
    assert ids(ring.find("2031-05-04T10:00:07Z", 100)) == [8, 9, 10]
    assert ids(ring.find("2031-05-04T12:00:07+02:00", 100)) == [8, 9, 10]
    assert ids(ring.find("2031-05-04T10:00:07", 100)) == [8, 9, 10]


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(errors.InvalidRequestError, match="yesterday"):
        filled(1).find("yesterday", 1)


def test_events_are_there_after_a_restart_and_ids_go_on(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 10_000, 3)
    first = EventRing(100, file.load(100))
    for second in range(3):
        file.append(first.add(event(second, text="ü")))
    second_ring = EventRing(100, EventFile(tmp_path, 10_000, 3).load(100))
    assert second_ring.add(event())["id"] == 4
    assert second_ring.find(None, 10)[0]["text"] == "ü"


def test_files_rotate_by_size_and_only_so_many_are_kept(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 1_000, 2)
    ring = EventRing(1_000, [])
    for second in range(60):
        file.append(ring.add(event(second)))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert set(names) <= {"events.jsonl", "events.jsonl.1", "events.jsonl.2"}
    assert all(path.stat().st_size < 1_200 for path in tmp_path.iterdir())
    kept = ids(file.load(1_000))
    assert kept == list(range(kept[0], 61))
    assert len(kept) >= 16


def test_only_as_many_as_wanted_are_loaded(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 100_000, 2)
    ring = EventRing(1_000, [])
    for second in range(50):
        file.append(ring.add(event(second)))
    assert ids(file.load(5)) == [46, 47, 48, 49, 50]


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 100_000, 2)
    ring = EventRing(10, [])
    file.append(ring.add(event()))
    with (tmp_path / "events.jsonl").open("ab") as raw:
        raw.write(b'{"id": 2, "time": "2031-')
    again = EventFile(tmp_path, 100_000, 2)
    ring = EventRing(10, again.load(10))
    again.append(ring.add(event()))
    assert ids(again.load(10)) == [1, 2]


def test_an_event_without_room_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 100_000, 2)
    ring = EventRing(10, [])
    assert file.append(ring.add(event()))
    size = (tmp_path / "events.jsonl").stat().st_size
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, unlimited[1]))
    try:
        assert not file.append(ring.add(event()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert file.append(ring.add(event()))
    assert ids(file.load(10)) == [1, 3]
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_names_and_message_vpns_choose_events() -> None:
    ring = EventRing(10, [])
    for name, vpn in (("CLIENT_UP", "a"), ("CLIENT_DOWN", "b"), ("VPN_UP", "a")):
        ring.add(event(event=name, vpn=vpn))
    assert ids(ring.find(None, 10, None, "CLIENT_*")) == [1, 2]
    assert ids(ring.find(0, 10, "a", "CLIENT_*")) == [1]
    assert ids(ring.find(None, 1, "a")) == [3]


def test_who_follows_goes_on_behind_what_was_looked_at() -> None:
    ring = filled(10)
    assert ring.follow(None, 5, None, "*") == ([], 10, 0)
    found = ring.follow(4, 3, None, "*")
    assert (ids(found.events), found.upto, found.lost) == ([5, 6, 7], 7, 0)
    found = ring.follow(found.upto, 5, None, "*")
    assert (ids(found.events), found.upto, found.lost) == ([8, 9, 10], 10, 0)
    assert ring.follow(2, 5, None, "NONE") == ([], 10, 0)
    assert ids(ring.follow("2031-05-04T10:00:08Z", 5, None, "*").events) == [9, 10]
    assert EventRing(10, []).follow(0, 5, None, "*") == ([], 0, 0)


def test_who_follows_is_told_how_many_are_not_kept() -> None:
    ring = filled(50, size=10)
    found = ring.follow(30, 4, None, "*")
    assert (ids(found.events), found.upto, found.lost) == ([41, 42, 43, 44], 44, 10)
    assert ring.follow(found.upto, 100, None, "*").lost == 0
    assert ring.follow(30, 4, None, "NONE") == ([], 50, 10)


@pytest.mark.parametrize("since", [51, -1])
def test_the_id_of_no_event_gives_what_is_kept_and_says_so(since: int) -> None:
    found = filled(50, size=10).follow(since, 100, None, "*")
    assert (ids(found.events), found.upto, found.lost) == (list(range(41, 51)), 50, None)
