"""The pair of a node: what the controller tells operators of it, what crosses beside the stores, who is promoted."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium import errors
from angarium_server.frames.shipping import Followed, Order, ShipFiles
from cluster.admin.answers import HostStatus, StoreStatus
from cluster.commands import cli
from cluster.commands.standby import promoting
from cluster.commands.standby.promoting import name_other, promote_host
from cluster.commands.standby.standby import _print_status, pair_lines
from cluster.configuration.config import NodeConfig
from cluster.controller.standby import SILENT_S
from cluster.controller.switchboard.effects import SwitchOver
from cluster.data.data_dir import DataDirectory, write_durably
from cluster.data.node_file import HOST_STATUS_FILE, NODE_FILE, NodeFile, process_start, read_node_file
from cluster.join.stored import read as read_joined
from cluster.standby import files, host
from cluster.standby.noted import Noted
from cluster.standby.pair.member import Role
from cluster.standby.pair.outside import Holder, Read, Standing
from cluster.standby.pair.settings import waits_because
from cluster.standby.promotion import (
    FORCE_FILE,
    Begun,
    Promotion,
    begun_of,
    forget_force,
    forget_promotion,
    note_begun,
    note_promotion,
    noted_promotion,
    wanted_force,
    why_begun,
)
from cluster.standby.stores.manual import ManualStore, PromotionError, note
from cluster.standby.stores.opening import MANUAL_FILE
from cluster.supervisor.server import run_supervisor
from cluster.supervisor.starting import PRIMARY_WAIT_S, UpOptions, _standing_by, refuse_standby, run_detached
from tests.unit.cluster.controller_world import World

if TYPE_CHECKING:
    from pathlib import Path

STATUS = HostStatus(
    host="alpha",
    role="primary",
    pid=77,
    pid_start=1,
    since="2031-05-04T10:00:00.000Z",
    epoch=3,
    primary="alpha",
    in_sync=["alpha", "beta"],
    acts=True,
    required=True,
    store="etcd",
    failure="",
    follows=[],
    stores=[
        StoreStatus(
            store=store, follows=True, caught_up=True, lag_groups=lag, bringing_bytes=0, sent_bytes=500
        )
        for store, lag in (("0", 2), ("config", 0))
    ],
)


def alone(**changes: Any) -> HostStatus:
    return msgspec.structs.replace(STATUS, in_sync=["alpha"], **changes)


def names(world: World) -> list[str]:
    return [event["event"] for event in world.ring.find(None, 100)]


# -- the controller ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("R269")
def test_a_switch_is_written_down_and_asks_the_keeper() -> None:
    world = World()
    assert world.ask("standby.status")["role"] == "alone"
    with pytest.raises(errors.AngariumError) as caught:
        world.ask("standby.switch")
    assert caught.value.code == errors.STANDBY_REFUSED, "there is no pair"
    world.do(world.controller.pair(alone()))
    with pytest.raises(errors.AngariumError) as caught:
        world.ask("standby.switch")
    assert caught.value.code == errors.STANDBY_REFUSED, "nobody else has everything"
    world.do(world.controller.pair(msgspec.structs.replace(STATUS, store="manual")))
    with pytest.raises(errors.AngariumError) as caught:
        world.ask("standby.switch")
    assert caught.value.code == errors.STANDBY_REFUSED, "the operator decides"
    world.do(world.controller.pair(STATUS))
    world.written.clear()
    world.effects.clear()
    world.ask("standby.switch")
    assert SwitchOver(77) in world.effects
    assert b'"standby.switch"' in world.written[0]
    assert world.ask("standby.status")["in_sync"] == ["alpha", "beta"]


def test_operators_hear_once_of_a_primary_and_of_a_standby_that_is_lost_or_back() -> None:
    world = World()
    for status in (STATUS, STATUS, alone(), alone(), STATUS, msgspec.structs.replace(STATUS, epoch=4)):
        world.do(world.controller.pair(status))
    told = [name for name in names(world) if "STANDBY" in name or "PRIMARY" in name]
    assert told == [
        "SYSTEM_PRIMARY_BEGAN",
        "SYSTEM_STANDBY_LOST",
        "SYSTEM_STANDBY_LOST_CLEAR",
        "SYSTEM_PRIMARY_BEGAN",
    ]


def test_operators_hear_of_a_standby_for_which_everything_waits_in_vain() -> None:
    """It stays in the in-sync set, with `required`: nothing else says why publishers wait."""
    world = World()
    silent = msgspec.structs.replace(STATUS, silent_s=SILENT_S)
    for status in (STATUS, msgspec.structs.replace(STATUS, silent_s=1.0), silent, silent):
        world.do(world.controller.pair(status))
    assert names(world).count("SYSTEM_STANDBY_LOST") == 1
    assert "angarium_standby_silent_seconds 5" in world.controller.metrics(world.now)
    (line,) = pair_lines(world.ask("standby.status"))
    assert line.endswith("it waits for the standby, which has not followed for 5 s !")
    world.do(world.controller.pair(STATUS))
    assert names(world)[-1] == "SYSTEM_STANDBY_LOST_CLEAR"


def test_operators_hear_of_a_standby_that_is_waited_for_that_nothing_is_acknowledged() -> None:
    world = World()
    for status in (STATUS, alone(required=True)):
        world.do(world.controller.pair(status))
    (event,) = [event for event in world.ring.find(None, 100) if event["event"] == "SYSTEM_STANDBY_LOST"]
    assert "acknowledges nothing" in event["text"]


@pytest.mark.requirement("R269")
def test_a_promotion_by_force_is_told_with_what_it_costs() -> None:
    world = World()
    world.do(world.controller.pair(alone(forced=True)))
    (event,) = [event for event in world.ring.find(None, 100) if event["event"] == "SYSTEM_PRIMARY_BEGAN"]
    assert event["severity"] == "error"
    assert "what only the other host had is lost" in event["text"]


@pytest.mark.requirement("R269")
def test_a_promotion_is_written_down_by_the_node_that_begins() -> None:
    world = World()
    for cost in ("what only alpha has is lost", ""):
        world.do(world.controller.pair(STATUS, Promotion(host="beta", who="anna", cost=cost)))
    first, second = (json.loads(line) for line in world.written)
    assert (first["who"], first["door"], first["operation"]) == ("anna", "local", "standby.promote")
    assert first["asked"] == {"name": "beta", "reason": "what only alpha has is lost"}
    assert (second["asked"], second["outcome"]) == ({"name": "beta"}, "done")


@pytest.mark.requirement("R269")
def test_a_promotion_waits_until_it_is_written_down(tmp_path: Path) -> None:
    manual = msgspec.structs.replace(STATUS, host="beta", role="standby", store="manual", in_sync=["beta"])
    assert "named the primary" in promote_host(tmp_path, manual, may_lose=False)
    promotion = noted_promotion(tmp_path)
    assert promotion is not None
    assert (promotion.host, promotion.cost) == ("beta", "")
    forget_promotion(tmp_path)
    assert noted_promotion(tmp_path) is None
    note_promotion(tmp_path, promotion)
    assert noted_promotion(tmp_path) == promotion


@pytest.mark.requirement("R269")
def test_who_names_a_host_again_changes_nothing_of_what_its_promotion_costs(tmp_path: Path) -> None:
    """It began as the same node for its neighbours, though it lacks messages; or as another one, without a reason."""
    lacking = msgspec.structs.replace(
        STATUS, host="beta", role="standby", primary="alpha", store="manual", in_sync=["alpha"]
    )
    promote_host(tmp_path, lacking, may_lose=True)
    promotion = noted_promotion(tmp_path)
    assert promotion is not None
    assert promotion.cost == "what only alpha has is lost"
    named = msgspec.structs.replace(lacking, role="candidate", primary="beta", in_sync=["beta"])
    assert "is named the primary" in promote_host(tmp_path, named, may_lose=False)
    assert noted_promotion(tmp_path) == promotion
    forget_promotion(tmp_path)  # it has begun, and is started again
    promote_host(tmp_path, named, may_lose=False)
    assert noted_promotion(tmp_path) is None


@pytest.mark.requirement("R269")
@pytest.mark.parametrize("may_lose", [False, True])
def test_a_host_that_is_named_on_itself_is_promoted_as_without_its_name(
    tmp_path: Path, *, may_lose: bool
) -> None:
    """Nothing was noted: it began as the same node for its neighbours, though it lacks messages."""
    beta = Holder("beta", "1")
    asyncio.run(ManualStore(beta, tmp_path / MANUAL_FILE).ask(1, Read(), 10.0))
    note(
        tmp_path / MANUAL_FILE, Standing(1, "alpha", frozenset(("alpha",) if may_lose else ("alpha", "beta")))
    )
    assert "'angarium standby promote --host beta' there" in name_other(tmp_path, "beta", may_lose=may_lose)
    promotion = noted_promotion(tmp_path)
    assert promotion is not None
    assert (promotion.host, bool(promotion.cost)) == ("beta", may_lose)


@pytest.mark.requirement("R269")
def test_who_asks_for_force_by_an_empty_file_gets_it(tmp_path: Path) -> None:
    (tmp_path / FORCE_FILE).touch()
    promotion = wanted_force(tmp_path)
    assert promotion is not None
    assert "lost" in promotion.cost


def test_figures_are_those_of_the_slowest_store() -> None:
    world = World()
    assert "angarium_standby" not in world.controller.metrics(world.now)
    world.do(world.controller.pair(STATUS))
    page = world.controller.metrics(world.now).splitlines()
    assert {"angarium_standby_in_sync 1", "angarium_standby_epoch 3", "angarium_standby_lag_groups 2"} <= {
        *page
    }
    told = {line.partition(" ")[0]: line.partition(" ")[2] for line in page if "standby_" in line}
    assert told['angarium_standby_primary{host="alpha"}'] == "1"
    assert [told[f'angarium_standby_has_all{{host="{host}"}}'] for host in STATUS.in_sync] == ["1", "1"]
    assert told["angarium_standby_sent_bytes_total"] == "1000"
    assert "angarium_standby_begun_timestamp_seconds" not in told, "nobody knows"
    world.do(world.controller.pair(msgspec.structs.replace(STATUS, begun="1970-01-02T00:00:00.500Z")))
    page = world.controller.metrics(world.now).splitlines()
    assert "angarium_standby_begun_timestamp_seconds 86400.5" in page


# -- files -------------------------------------------------------------------------------------------------------


def test_a_standby_gets_the_identity_and_secrets_of_the_node_and_nothing_else(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    for data in (ours, theirs):
        data.mkdir()
    assert files.collect(ours, 1) is None, "no node has begun"
    node = NodeFile(node="orders", node_id="id", data_id="data", workers=2, starts=5, pid=9, url="tcp://x")
    (ours / NODE_FILE).write_bytes(msgspec.json.encode(node))
    (ours / "token.key").write_text("secret")
    (ours / "cluster").mkdir()
    (ours / "cluster" / "node.pem").write_text("certificate")
    (ours / "events.jsonl").write_text("of this host")
    note_begun(ours, Begun(epoch=3, at="2031-05-04T10:00:00.000Z", why="nobody was it before"))
    shipped = files.collect(ours, 3)
    assert shipped is not None
    files.write(theirs, shipped)
    found = read_node_file(theirs)
    assert (found.node, found.node_id, found.data_id, found.workers, found.starts) == (
        "orders",
        "id",
        "data",
        2,
        5,
    )
    assert (found.pid, found.url) == (0, "")
    assert (theirs / "cluster" / "node.pem").read_text() == "certificate"
    assert (theirs / "token.key").stat().st_mode & 0o077 == 0
    assert not (theirs / "events.jsonl").exists()
    assert begun_of(theirs, 3).why == "nobody was it before"
    assert not begun_of(theirs, 4).why, "of another primary that is not known"


def test_what_the_primary_has_no_more_goes_at_the_standby_too(tmp_path: Path) -> None:
    """Links are not made again after a take-over, and a node that left its cluster is not in it again."""
    alike, standing = {"node": "n", "node_id": "i", "workers": 1}, {"cluster/joined.json": b"{}"}
    issuers = {"issuers/a": b"keys"}
    files.write(tmp_path, ShipFiles(1, alike, {**standing, **issuers, "cluster/links.json": b"[]"}))
    assert (tmp_path / "cluster" / "links.json").exists()
    files.write(tmp_path, ShipFiles(2, alike, {**standing, **issuers}))
    assert [path.name for path in (tmp_path / "cluster").iterdir()] == ["joined.json"]
    files.write(tmp_path, ShipFiles(3, alike, issuers))
    assert read_joined(tmp_path) is None
    assert (tmp_path / "issuers" / "a").read_bytes() == b"keys"


def test_it_is_said_why_a_host_is_the_primary() -> None:
    def why(before: str, *, is_given_back: bool = False, is_heard: bool = False) -> str:
        return why_begun("beta", before, is_given_back=is_given_back, is_heard=is_heard)

    assert why("") == "nobody was it before"
    assert why("beta", is_given_back=True) == "it was that before, and was started again"
    assert why("alpha", is_given_back=True, is_heard=True) == "alpha stopped in order, or handed over"
    assert why("alpha", is_heard=True) == "alpha did not renew its lease, though it was heard"
    assert why("alpha") == "nothing was heard of alpha, and its lease was over"


def test_who_looks_at_a_node_of_two_hosts_sees_both() -> None:
    world = World()
    assert pair_lines(world.ask("standby.status")) == []
    world.do(world.controller.pair(msgspec.structs.replace(STATUS, begun="then", why="alpha was gone")))
    assert pair_lines(world.ask("standby.status")) == [
        "host alpha is the primary, epoch 3, in sync: alpha and beta; it waits for the standby, lag 2",
        "alpha began then: alpha was gone",
    ]
    world.do(world.controller.pair(alone(required=False)))
    (line,) = pair_lines(world.ask("standby.status"))
    assert line.endswith("in sync: alpha; it goes on without a standby !")


@pytest.mark.parametrize(
    "name", ["../token.key", "/etc/passwd", "cluster/../../x", "spool/0", "cluster/a/b", "lock"]
)
def test_a_primary_writes_no_file_that_it_has_no_business_with(tmp_path: Path, name: str) -> None:
    files.write(tmp_path, ShipFiles(1, {"node": "n", "node_id": "i", "workers": 1}, {name: b"x"}))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [NODE_FILE]


def test_incarnations_of_a_host_that_was_the_primary_are_not_given_again(tmp_path: Path) -> None:
    files.write(tmp_path, ShipFiles(1, {"node": "n", "node_id": "i", "workers": 1, "starts": 9}, {}))
    files.write(tmp_path, ShipFiles(2, {"node": "n", "node_id": "i", "workers": 1, "starts": 4}, {}))
    assert read_node_file(tmp_path).starts == 9


@pytest.mark.requirement("R268")
def test_a_standby_learns_which_stores_went(tmp_path: Path) -> None:
    alike = {"node": "n", "node_id": "i"}
    assert files.write(tmp_path, ShipFiles(1, {**alike, "workers": 3}, {})) == []
    assert files.write(tmp_path, ShipFiles(2, {**alike, "workers": 1}, {})) == ["1", "2"]
    assert files.write(tmp_path, ShipFiles(3, {**alike, "workers": 2}, {})) == []


@pytest.mark.requirement("R268")
def test_the_stores_of_a_node_are_those_that_its_file_says_now(tmp_path: Path) -> None:
    stores = files.Stores(tmp_path)
    assert stores.names() == [], "no node has begun"
    for workers in (1, 3, 2):
        node = NodeFile(node="n", node_id="i", data_id="d", workers=workers)
        write_durably(tmp_path / NODE_FILE, msgspec.json.encode(node))
        assert stores.names() == ["config", *map(str, range(workers))]
    (tmp_path / NODE_FILE).unlink()
    assert stores.names() == [], "of what cannot be read nobody has everything"


# -- the data directory ------------------------------------------------------------------------------------------


def test_a_host_of_a_pair_writes_nothing_while_a_node_runs_that_has_no_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would write what its primary sends into stores that the node, or a restore, has open."""
    monkeypatch.setattr(host, "LEFT_S", 0.1)
    with DataDirectory(tmp_path, "orders"), pytest.raises(errors.ConflictError) as caught:
        host.Host(tmp_path, NodeConfig())
    assert caught.value.code == errors.OBJECT_IN_USE


@pytest.mark.requirement("R266")
@pytest.mark.parametrize("start", [run_detached, run_supervisor])
def test_a_standby_is_no_node_of_its_own_when_its_section_is_left_out(start: Any, tmp_path: Path) -> None:
    """It may lack what was acknowledged, and its primary may run: both would be the node."""
    noted = Noted(tmp_path)
    noted.note(Role.CANDIDATE, 3)
    with pytest.raises(errors.ConflictError) as caught:
        start(UpOptions(data_dir=str(tmp_path), workers=1))
    assert caught.value.code == errors.STANDBY_REFUSED
    assert "is that of a standby" in caught.value.detail
    options, config = UpOptions(data_dir=str(tmp_path), accept_loss=True), NodeConfig()
    refuse_standby(options, config, tmp_path)
    noted.note(Role.PRIMARY, 4)
    refuse_standby(UpOptions(data_dir=str(tmp_path)), config, tmp_path)


def test_a_host_that_nobody_has_named_is_up_once_no_primary_has_found_it(tmp_path: Path) -> None:
    pid = os.getpid()
    there = msgspec.structs.replace(
        STATUS,
        role="standby",
        pid=pid,
        pid_start=process_start(pid) or 0,
        store="manual",
        primary="",
        stores=[],
    )

    def is_up(waited_s: float, **changes: Any) -> bool:
        status = msgspec.structs.replace(there, **changes)
        (tmp_path / HOST_STATUS_FILE).write_bytes(msgspec.json.encode(status))
        return _standing_by(tmp_path, pid, waited_s) is not None

    assert not is_up(0.0)
    assert is_up(PRIMARY_WAIT_S + 1.0)
    assert is_up(0.0, follows=["config"], primary="alpha")
    assert not is_up(PRIMARY_WAIT_S + 1.0, primary="alpha"), "it is about to begin"
    assert not is_up(PRIMARY_WAIT_S + 1.0, store="etcd"), "it may take the lease at any moment"
    assert not is_up(PRIMARY_WAIT_S + 1.0, pid=os.getppid(), pid_start=0), "another one runs there"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"in_sync": ["beta"], "primary": "beta"}, "beta has everything, is not heard, and may have what"),
        (
            {"in_sync": ["beta"], "primary": "beta", "refusal": "move it away"},
            "is not followed: move it away",
        ),
        ({"primary": "beta", "fault": "its disk is new."}, "its disk is new."),
        (
            {"primary": "", "in_sync": [], "failure": "no answer"},
            "the outside store does not answer: no answer",
        ),
    ],
    ids=["it lacks something", "a primary is refused", "it has lost something", "no outside store"],
)
def test_a_host_that_takes_nothing_over_is_up_when_no_primary_is_heard_and_says_why(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    pid = os.getpid()
    started = process_start(pid) or 0
    status = msgspec.structs.replace(STATUS, role="standby", pid=pid, pid_start=started, stores=[], **changes)
    (tmp_path / HOST_STATUS_FILE).write_bytes(msgspec.json.encode(status))
    assert _standing_by(tmp_path, pid, 0.0) is None, "a primary may be about to find it"
    assert _standing_by(tmp_path, pid, PRIMARY_WAIT_S + 1.0) == status
    assert why in waits_because(status)
    assert waits_because(msgspec.structs.replace(status, follows=["config"])) == ""


def test_a_standby_shows_the_store_that_it_does_not_follow(capsys: pytest.CaptureFixture[str]) -> None:
    status = msgspec.structs.replace(STATUS, role="standby", stores=[], follows=["config"], refusal="no room")
    _print_status(msgspec.to_builtins(status), why=waits_because(status))
    assert "follows: config\na store is not followed: no room !\n" in capsys.readouterr().out


# -- an operator -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R269")
def test_a_host_that_may_lack_something_is_promoted_by_force_only(tmp_path: Path) -> None:
    beta = msgspec.structs.replace(alone(), host="beta", role="standby")
    with pytest.raises(errors.AngariumError) as caught:
        promote_host(tmp_path, beta, may_lose=False)
    assert caught.value.code == errors.STANDBY_REFUSED
    assert "alpha has everything" in caught.value.detail
    assert "is lost" in promote_host(tmp_path, beta, may_lose=True)
    assert noted_promotion(tmp_path) is None, "it may never take over"
    promotion = wanted_force(tmp_path)
    assert promotion is not None
    assert (promotion.host, promotion.cost) == ("beta", "what only alpha has is lost")
    assert promotion.who
    assert wanted_force(tmp_path) == promotion, "a host that is started again goes on with it"
    forget_force(tmp_path)
    assert wanted_force(tmp_path) is None
    assert promote_host(tmp_path, STATUS, may_lose=False) == "host alpha is the primary"


@pytest.mark.requirement("R269")
@pytest.mark.parametrize(
    ("changes", "told", "cost"),
    [
        (
            {"in_sync": ["alpha", "beta"], "fault": "its disk is new."},
            "its disk is new.",
            "what only alpha has is lost",
        ),
        ({"in_sync": ["beta"], "fault": "the store is in epoch 3"}, "the store is in epoch 3", ""),
        ({"in_sync": [], "primary": "", "failure": "no answer"}, "no answer", ""),
        ({"in_sync": [], "primary": ""}, "it knows of no primary", ""),
    ],
    ids=["a new disk", "a backup of the outside store", "no outside store", "an empty outside store"],
)
def test_a_host_that_takes_nothing_over_by_itself_is_not_said_to_do_so(
    tmp_path: Path, changes: dict[str, Any], told: str, cost: str
) -> None:
    beta = msgspec.structs.replace(STATUS, host="beta", role="standby", **changes)
    with pytest.raises(errors.AngariumError) as caught:
        promote_host(tmp_path, beta, may_lose=False)
    assert caught.value.code == errors.STANDBY_REFUSED
    assert told in caught.value.detail
    assert promote_host(tmp_path, beta, may_lose=True).endswith(cost or "takes the lease when nobody has it")
    promotion = wanted_force(tmp_path)
    assert promotion is not None
    assert promotion.cost == cost


def test_the_operator_names_the_other_host_where_the_old_primary_was(tmp_path: Path) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        name_other(tmp_path, "beta", may_lose=False)
    assert (caught.value.code, "the outside store decides" in caught.value.detail) == (
        errors.STANDBY_REFUSED,
        True,
    )
    manual = msgspec.structs.replace(alone(store="manual"), role="standby", primary="", in_sync=[])
    assert "type 'angarium standby promote --host alpha' there" in promote_host(
        tmp_path, manual, may_lose=False
    )
    note(tmp_path / MANUAL_FILE, Standing(1, "alpha", frozenset(("alpha",))))
    with pytest.raises(errors.AngariumError) as caught:
        name_other(tmp_path, "beta", may_lose=False)
    assert "beta may not have everything" in caught.value.detail
    assert "host beta is named the primary here" in name_other(tmp_path, "beta", may_lose=True)


def test_a_damaged_file_of_the_operator_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / MANUAL_FILE).write_text('{"host"')
    manual = msgspec.structs.replace(STATUS, host="beta", role="standby", store="manual", in_sync=["beta"])
    with pytest.raises(errors.InvalidRequestError, match=f"{MANUAL_FILE} cannot be read"):
        promote_host(tmp_path, manual, may_lose=True)
    with pytest.raises(errors.InvalidRequestError, match=f"{MANUAL_FILE} cannot be read"):
        name_other(tmp_path, "beta", may_lose=True)
    assert noted_promotion(tmp_path) is None


@pytest.mark.requirement("R269")
def test_what_a_promotion_costs_is_noted_before_the_host_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that began before that kept the node id by which neighbours know what it has lost."""
    noted: list[Promotion | None] = []

    def promote(path: Path, host: str, *, may_lose: bool) -> None:
        noted.append(noted_promotion(tmp_path))
        assert (path.name, host) == (MANUAL_FILE, "beta")
        if not may_lose:
            raise PromotionError("beta may not have everything")

    monkeypatch.setattr(promoting, "promote", promote)
    beta = msgspec.structs.replace(alone(store="manual"), host="beta", role="standby")
    promote_host(tmp_path, beta, may_lose=True)
    first = noted_promotion(tmp_path)
    assert first is not None
    assert first.cost
    manual = msgspec.structs.replace(beta, in_sync=["beta"])
    with pytest.raises(errors.ConflictError):
        promote_host(tmp_path, manual, may_lose=False)
    assert noted_promotion(tmp_path) == first, "one that was refused changes nothing"
    assert [one and bool(one.cost) for one in noted] == [True, False]


def test_orders_and_what_is_heard_are_frames() -> None:
    order = Order(3, 1.5, None)
    assert msgspec.msgpack.decode(order.frames()[1], type=Order) == order
    said = Followed("0", "beta", follows=True, caught_up=4, lag_groups=0, bringing=0)
    assert msgspec.msgpack.decode(said.frames()[1], type=Followed) == said


def test_who_asks_at_the_standby_is_told_where_the_node_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = msgspec.structs.replace(
        STATUS,
        host="beta",
        role="standby",
        primary="alpha",
        pid=os.getpid(),
        pid_start=process_start(os.getpid()),
    )
    (tmp_path / HOST_STATUS_FILE).write_bytes(msgspec.json.encode(here))
    assert cli.run(["status", "--data", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "host beta is the standby, the node runs on host alpha" in err
    assert "'angarium standby status'" in err
    for primary in ("beta", ""):
        (tmp_path / HOST_STATUS_FILE).write_bytes(
            msgspec.json.encode(msgspec.structs.replace(here, role="primary", primary=primary))
        )
        assert cli.run(["status", "--data", str(tmp_path)]) == 1
        err = capsys.readouterr().err
        assert "host beta of its pair is about to start it, or to end" in err
        assert "try again in a moment" in err
    (tmp_path / HOST_STATUS_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(here, pid_start=1)))
    assert cli.run(["status", "--data", str(tmp_path)]) == 1
    assert "no node was started" in capsys.readouterr().err
