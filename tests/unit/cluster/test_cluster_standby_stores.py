"""What outside stores decide without a server: leases by the clock of who watches, and the operator's word."""

from __future__ import annotations

import asyncio
import base64
import copy
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium import errors
from cluster.configuration.standby import StandbySection
from cluster.standby.pair.outside import Holder, Read, Renew, Request, Seen, Standing, Swap, Take
from cluster.standby.stores.etcd_words import Transactions, found_in
from cluster.standby.stores.kubernetes import LeaseStore
from cluster.standby.stores.lease_words import ANNOTATION, Watch, changed, is_possible
from cluster.standby.stores.manual import PROMOTION_EPOCHS, ManualStore, PromotionError, note, promote
from cluster.standby.stores.opening import MANUAL_FILE, open_store
from cluster.standby.stores.store import NoAnswerError
from cluster.standby.stores.written import written

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.standby.pair.outside import Answer

A, B = Holder("a", "1"), Holder("b", "1")
ALONE = Standing(3, "a", frozenset("a"))
BOTH = Standing(3, "a", frozenset("ab"))


# -- a Lease, and the clock of who watches it ----------------------------------------------------------------------


def lease(
    request: Request, there: dict[str, Any] | None = None, version: str = "1", me: Holder = A
) -> dict[str, Any]:
    """Give what a request makes of a Lease, as the server gives it back."""
    made = changed(there, "l", request, "c", me, 5)
    assert made is not None
    made["metadata"] |= {"uid": "u", "resourceVersion": version}
    return made


TAKEN = lease(Take(Seen(0, None, None), ALONE))


def test_a_lease_ends_for_a_watcher_when_nothing_changed_for_its_duration() -> None:
    watch = Watch(5)
    assert watch.look(TAKEN, 100.0).seen == Seen(1, ALONE, A)
    assert watch.look(TAKEN, 104.9).seen.holder == A
    assert watch.look(TAKEN, 105.0).seen == Seen(1, ALONE, None)


def test_a_watcher_that_has_just_begun_waits_however_old_the_lease_says_to_be() -> None:
    old = copy.deepcopy(TAKEN)
    old["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
    watch = Watch(5)
    assert watch.look(old, 0.0).seen.holder == A
    assert watch.look(old, 5.0).seen.holder is None


def test_whatever_changes_a_lease_begins_it_anew() -> None:
    watch = Watch(5)
    watch.look(TAKEN, 100.0)
    renewed = lease(Renew(), TAKEN, "2")
    assert watch.look(renewed, 104.0).seen.holder == A
    assert watch.look(renewed, 108.9).seen.holder == A
    again = {**renewed, "metadata": {**renewed["metadata"], "uid": "another"}}
    assert watch.look(again, 109.0).seen.holder == A


def test_the_duration_is_what_the_holder_was_promised() -> None:
    longer = copy.deepcopy(TAKEN)
    longer["spec"]["leaseDurationSeconds"] = 30
    watch = Watch(5)
    watch.look(longer, 0.0)
    assert watch.look(longer, 29.9).seen.holder == A
    del longer["spec"]["leaseDurationSeconds"]
    assert watch.look(longer, 29.9).seen.holder is None


def test_renewals_leave_the_revision_and_the_standing_alone_and_count_no_transition() -> None:
    renewed = lease(Renew(), TAKEN, "2")
    swapped = lease(Swap(1, BOTH), renewed, "3")
    assert Watch(5).look(renewed, 0.0).seen == Seen(1, ALONE, A)
    assert Watch(5).look(swapped, 0.0).seen == Seen(2, BOTH, A)
    taken = lease(Take(Seen(2, BOTH, None), ALONE), swapped, "4", me=B)
    assert Watch(5).look(taken, 0.0).seen == Seen(3, ALONE, B)
    transitions = [each["spec"]["leaseTransitions"] for each in (TAKEN, renewed, swapped, taken)]
    assert transitions == [1, 1, 1, 2]


def test_what_others_keep_in_a_lease_stays() -> None:
    there = copy.deepcopy(TAKEN)
    there["metadata"]["annotations"]["theirs"] = "x"
    there["metadata"]["labels"] = {"app": "angarium"}
    kept = lease(Swap(1, BOTH), there, "2")["metadata"]
    assert (kept["annotations"]["theirs"], kept["labels"]) == ("x", {"app": "angarium"})


def test_a_request_is_possible_upon_what_it_was_decided_upon() -> None:
    seen = Seen(4, BOTH, A)
    assert is_possible(Swap(4, ALONE), seen, A)
    assert not is_possible(Swap(3, ALONE), seen, A)
    assert not is_possible(Swap(4, ALONE), seen, B)
    assert not is_possible(Renew(), seen._replace(holder=None), A)
    assert not is_possible(Take(seen._replace(holder=None), ALONE), seen, B)
    assert is_possible(Take(seen, ALONE), seen, Holder("a", "2"))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"epoch": "3"}'])
def test_a_standing_that_cannot_be_read_is_no_answer(text: str) -> None:
    there = copy.deepcopy(TAKEN)
    there["metadata"]["annotations"][ANNOTATION] = text
    with pytest.raises(NoAnswerError, match=f"annotation {ANNOTATION} of the Lease cannot be read"):
        Watch(5).look(there, 0.0)


# -- etcd ----------------------------------------------------------------------------------------------------------


def test_what_etcd_leaves_out_is_zero() -> None:
    nothing = {"response_range": {"header": {"revision": "1"}}}
    found = found_in({"header": {}, "responses": [nothing, nothing]})
    assert (found.is_done, found.seen, found.holder_revision) == (False, Seen(0, None, None), 0)


@pytest.mark.parametrize("body", [{}, {"responses": []}, {"responses": [{}, {}]}, [], None, {"responses": 3}])
def test_what_etcd_does_not_say_is_no_answer(body: Any) -> None:
    with pytest.raises(NoAnswerError, match="etcd answered something else"):
        found_in(body)


def test_keys_are_under_the_prefix_and_the_node() -> None:
    transaction = Transactions("/team/angarium/", "n1").take(A, Seen(0, None, None), written(ALONE, "c"), "7")
    keys = [base64.b64decode(put["request_put"]["key"]) for put in transaction["success"][:2]]
    assert keys == [b"team/angarium/n1/standing", b"team/angarium/n1/holder"]


# -- the operator --------------------------------------------------------------------------------------------------


def asked(path: Path, me: Holder, request: Request) -> Answer:
    return asyncio.run(ManualStore(me, path).ask(1, request, 10.0))


def founded(folder: Path) -> Path:
    """Give the file of a host that was named and is the primary, with its standby in the in-sync set."""
    path = folder / MANUAL_FILE
    promote(path, "a")
    taken = asked(path, A, Take(asked(path, A, Read()).seen, ALONE))
    assert asked(path, A, Swap(taken.seen.revision, BOTH)).is_done
    return path


def test_nobody_takes_before_the_operator_has_named_a_host(tmp_path: Path) -> None:
    path = tmp_path / MANUAL_FILE
    for me in (A, B):
        seen = asked(path, me, Read()).seen
        assert seen == Seen(0, None, Holder("", ""))
        assert not asked(path, me, Take(seen, ALONE)).is_done


def test_a_host_that_is_named_in_both_files_ends_the_one_and_begins_at_the_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    at_a, at_b = founded(tmp_path / "a"), tmp_path / "b" / MANUAL_FILE
    assert asked(at_b, B, Read()).seen == Seen(0, None, Holder("", ""))
    assert at_b.exists(), "a standby keeps what the primary tells it where there is such a file"
    note(at_b, BOTH)
    assert asked(at_b, B, Read()).seen == Seen(1, BOTH, Holder("", ""))
    promote(at_a, "b")
    refused = asked(at_a, A, Renew())
    assert (refused.is_done, refused.seen.holder) == (False, Holder("b", ""))
    promote(at_b, "b")
    seen = asked(at_b, B, Read()).seen
    assert (seen.standing, seen.holder) == (Standing(3 + PROMOTION_EPOCHS, "b", frozenset("b")), None)
    assert asked(at_b, B, Take(seen, Standing(4 + PROMOTION_EPOCHS, "b", frozenset("b")))).is_done


def test_a_host_that_stepped_aside_follows_and_lacks_what_came_since(tmp_path: Path) -> None:
    at_a = founded(tmp_path)
    promote(at_a, "b")
    aside = asked(at_a, A, Read()).seen
    # It follows whoever has a higher epoch than this one.
    assert aside.standing == Standing(3, "b", frozenset("b"))
    with pytest.raises(PromotionError, match="a may not have everything that was acknowledged; b has"):
        promote(at_a, "a")
    note(at_a, Standing(1004, "b", frozenset("ab")))
    promote(at_a, "a")
    assert asked(at_a, A, Read()).seen.standing == Standing(1004 + PROMOTION_EPOCHS, "a", frozenset("a"))


def test_what_the_host_that_was_named_tells_counts_whatever_its_epoch(tmp_path: Path) -> None:
    """The old primary was started more often than the new one knows."""
    at_a = founded(tmp_path)
    note(at_a, BOTH._replace(epoch=2000))
    promote(at_a, "b")
    told = Standing(1004, "b", frozenset("ab"))
    note(at_a, told)
    assert asked(at_a, A, Read()).seen.standing == told


def test_a_host_that_may_lack_something_is_named_only_by_who_says_so(tmp_path: Path) -> None:
    path = tmp_path / MANUAL_FILE
    note(path, ALONE)
    with pytest.raises(PromotionError, match="b may not have everything that was acknowledged; a has"):
        promote(path, "b")
    promote(path, "b", may_lose=True)
    seen = asked(path, B, Read()).seen
    assert (seen.standing, seen.holder) == (Standing(3 + PROMOTION_EPOCHS, "b", frozenset("b")), None)


def test_what_an_earlier_primary_tells_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / MANUAL_FILE
    note(path, BOTH)
    note(path, ALONE._replace(epoch=2))
    assert asked(path, B, Read()).seen.standing == BOTH
    note(path, ALONE)
    assert asked(path, B, Read()).seen.standing == ALONE


def test_to_name_the_primary_again_changes_nothing(tmp_path: Path) -> None:
    path = founded(tmp_path)
    before = path.read_bytes()
    promote(path, "a")
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_read_is_no_answer_and_stays(tmp_path: Path) -> None:
    path = tmp_path / MANUAL_FILE
    path.write_text("{")
    with pytest.raises(NoAnswerError, match="cannot be read"):
        asked(path, A, Read())
    with pytest.raises(NoAnswerError):
        promote(path, "a")
    assert path.read_text() == "{"


def test_a_directory_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NoAnswerError, match="No such file"):
        asked(tmp_path / "none" / MANUAL_FILE, A, Read())


# -- which one -----------------------------------------------------------------------------------------------------


def opened(section: StandbySection, folder: Path, me: Holder = A) -> Any:
    async def test() -> Any:
        store = open_store(section, "n1", me, folder, folder)
        await store.close()
        return store

    return asyncio.run(test())


def test_a_pod_finds_its_api_server_and_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = StandbySection(store="kubernetes")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        errors.InvalidRequestError, match=r"this is no pod of Kubernetes: write standby\.endpoints"
    ):
        opened(section, tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(errors.InvalidRequestError, match="namespace: No such file"):
        opened(section, tmp_path)
    (tmp_path / "namespace").write_text("prod")
    assert isinstance(opened(section, tmp_path), LeaseStore)
    assert isinstance(opened(msgspec.structs.replace(section, namespace="n"), tmp_path), LeaseStore)


@pytest.mark.parametrize("me", [Holder("", "1"), Holder("a", ""), Holder("a", "1_2")])
def test_a_holder_that_would_be_read_as_another_one_is_refused(tmp_path: Path, me: Holder) -> None:
    with pytest.raises(ValueError, match="is no holder"):
        opened(StandbySection(store="manual"), tmp_path, me)
