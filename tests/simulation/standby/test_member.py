"""A host and the outside store: when it is the primary, and until when it may act."""

from __future__ import annotations

import pytest

from angarium_server.frames.shipping import BY_POLICY
from cluster.standby.pair.member import (
    ANSWER_S,
    DISK_S,
    DRIFT,
    LEASE_S,
    SILENT_S,
    ActUntil,
    Ask,
    Begin,
    Effect,
    End,
    Member,
    Release,
    Require,
    Role,
)
from cluster.standby.pair.outside import (
    Answer,
    Holder,
    Read,
    Renew,
    Request,
    Seen,
    Standing,
    Swap,
    Take,
)

A, B = Holder("a", "1"), Holder("b", "1")
ALONE = Standing(3, "a", frozenset("a"))
BOTH = Standing(3, "a", frozenset("ab"))


def asked(member: Member) -> tuple[int, Request]:
    """Give what it asks the outside store."""
    found = [effect for effect in member.outbox if isinstance(effect, Ask)]
    assert len(found) == 1, member.outbox
    member.outbox = [effect for effect in member.outbox if not isinstance(effect, Ask)]
    return found[0]


def taken(member: Member) -> list[Effect]:
    outbox, member.outbox = member.outbox, []
    return outbox


def healthy(me: Holder = A, *, may_found: bool = False, may_be_alone: bool = True) -> Member:
    member = Member(me, may_found=may_found, may_be_alone=may_be_alone)
    member.disks_answered(float("inf"))
    return member


def test_a_candidate_looks_at_once_when_the_primary_lets_go_of_it() -> None:
    """It has just given its lease back then: nobody acts until this one has it."""
    member = healthy(B)
    for now in (100.0, 100.2):
        member.tick(now)
        number, request = asked(member)
        assert request == Read()
        member.answered(Answer(number, True, Seen(5, BOTH, A)), now)
        member.primary_is_silent(now)
    member.tick(100.21)
    assert not taken(member), "it reads soon again, and not at once"
    member.primary_has_left(100.21)
    member.tick(100.21)
    number, _ = asked(member)
    member.answered(Answer(number, True, Seen(5, BOTH, None)), 100.22)
    assert isinstance(asked(member)[1], Take)


def primary(standing: Standing, *, may_be_alone: bool = True) -> Member:
    """One that has just begun, at 100 s."""
    member = healthy(may_be_alone=may_be_alone)
    member.tick(100.0)
    number, request = asked(member)
    assert request == Read()
    member.answered(Answer(number, True, Seen(5, standing._replace(epoch=2), None)), 100.0)
    number, request = asked(member)
    assert isinstance(request, Take)
    member.answered(Answer(number, True, Seen(6, standing, A)), 100.0)
    return member


def test_the_first_host_founds_the_pair_and_another_one_does_not() -> None:
    for me, may_found in ((A, True), (B, False)):
        member = healthy(me, may_found=may_found)
        member.tick(1.0)
        number, _ = asked(member)
        member.answered(Answer(number, True, Seen(0, None, None)), 1.0)
        expected = [Ask(2, Take(Seen(0, None, None), Standing(1, "a", frozenset("a"))))]
        assert taken(member) == (expected if may_found else [])


def test_a_primary_acts_for_less_than_its_lease_from_when_it_asked() -> None:
    member = primary(ALONE)
    assert taken(member) == [Begin(3, None), ActUntil(100.0 + LEASE_S * (1 - DRIFT))]
    member.tick(102.0)
    number, request = asked(member)
    assert request == Renew()
    member.answered(Answer(number, True, Seen(6, ALONE, A)), 102.9)
    assert taken(member) == [ActUntil(102.0 + LEASE_S * (1 - DRIFT))]


def test_who_is_not_in_sync_takes_nothing_and_a_holder_is_waited_for() -> None:
    member = healthy(B)
    for seen in (Seen(5, ALONE, None), Seen(5, BOTH, A)):
        member.tick(member._next_at)
        number, _ = asked(member)
        member.answered(Answer(number, True, seen), member._next_at)
        assert taken(member) == []
        assert member.role is Role.CANDIDATE


def test_a_standby_that_takes_over_is_alone_and_a_primary_that_is_back_is_not() -> None:
    for me, in_sync in ((B, "b"), (A, "ab")):
        member = healthy(me)
        member.tick(1.0)
        number, _ = asked(member)
        seen = Seen(5, BOTH, None)
        member.answered(Answer(number, True, seen), 1.0)
        assert asked(member)[1] == Take(seen, Standing(4, me.host, frozenset(in_sync)))


def test_a_standby_looks_more_often_while_the_primary_is_silent_and_only_if_it_may_take_over() -> None:
    for standing, is_sooner in ((BOTH, True), (ALONE, False)):
        member = healthy(B)
        member.tick(1.0)
        number, _ = asked(member)
        member.answered(Answer(number, True, Seen(5, standing, A)), 1.0)
        member.primary_is_silent(1.0)
        looked = []
        for step in range(1, 60):
            now = 1.0 + step / 100
            if step == 30:
                member.primary_speaks()
            member.tick(now)
            if member.outbox:
                number, request = asked(member)
                assert request == Read()
                member.answered(Answer(number, True, Seen(5, standing, A)), now)
                looked.append(step)
        # At once, every 0.1 s until the primary speaks, and then after the usual time; or at the usual time only.
        assert (looked[0], len(looked)) == ((1, 4) if is_sooner else (50, 1))


@pytest.mark.requirement("R264", "R269")
def test_a_store_that_was_restored_from_a_backup_makes_nobody_the_primary_but_by_force() -> None:
    """It says that both have everything, as it was in an earlier epoch; since then b was let go, say."""
    for is_forced in (False, True):
        member = Member(B, may_found=False, known_epoch=7)
        member.disks_answered(float("inf"))
        member.is_forced = is_forced
        member.tick(1.0)
        number, _ = asked(member)
        seen = Seen(5, BOTH._replace(primary="b"), None)
        member.answered(Answer(number, True, seen), 1.0)
        expected = [Ask(2, Take(seen, Standing(8, "b", frozenset("b"))))]
        assert taken(member) == (expected if is_forced else [])


@pytest.mark.requirement("R264")
def test_a_store_that_was_emptied_begins_above_all_that_was_seen() -> None:
    """Else the standby would refuse the primary, for whose epoch is over."""
    member = Member(A, may_found=True, known_epoch=7)
    member.disks_answered(float("inf"))
    member.tick(1.0)
    number, _ = asked(member)
    member.answered(Answer(number, True, Seen(0, None, None)), 1.0)
    assert taken(member) == [Ask(2, Take(Seen(0, None, None), Standing(8, "a", frozenset("a"))))]


@pytest.mark.requirement("R269")
@pytest.mark.parametrize("is_forced", [False, True])
def test_a_standby_begins_with_a_store_that_was_emptied_if_it_is_promoted_by_force(
    *, is_forced: bool
) -> None:
    """Nobody knows any more who has everything, and the host that was the primary may be gone."""
    member = Member(B, may_found=False, known_epoch=7)
    member.disks_answered(float("inf"))
    member.is_forced = is_forced
    member.tick(1.0)
    member.answered(Answer(asked(member)[0], True, Seen(0, None, None)), 1.0)
    expected = [Ask(2, Take(Seen(0, None, None), Standing(8, "b", frozenset("b"))))]
    assert taken(member) == (expected if is_forced else [])


@pytest.mark.requirement("R269")
def test_a_holder_is_waited_for_also_if_its_standing_was_deleted() -> None:
    """It acts until its lease ends, and there would be two."""
    member = healthy(B)
    member.is_forced = True
    assert not sees(member, Seen(5, None, A), 1.0)
    assert sees(member, Seen(6, None, None), 5.0)


def sees(member: Member, seen: Seen, now: float) -> bool:
    """Have a candidate look at the outside store; tells whether it takes the lease."""
    member.tick(now)
    member.answered(Answer(asked(member)[0], True, seen), now)
    return bool(taken(member))


@pytest.mark.requirement("R269")
def test_a_promotion_by_force_ends_when_the_primary_is_heard_again() -> None:
    """It was said of one that was lost. That brings this host what it lacks now, and in between it is like nothing."""
    member = healthy(B)
    member.is_forced = True
    member.primary_speaks()
    assert member.is_forced, "nobody has noticed yet that the primary has gone"
    member.primary_is_silent(1.0)
    assert not sees(member, Seen(5, ALONE, A), 1.0)
    assert member.is_forced, "the lease is not over"
    member.primary_speaks()
    assert not member.is_forced
    assert not sees(member, Seen(5, ALONE, None), 5.0)
    member.is_forced = True
    member.primary_speaks()
    assert member.is_forced, "somebody said so again, and nothing was silent since"
    assert sees(member, Seen(5, ALONE, None), 6.0)


@pytest.mark.requirement("R269")
def test_a_promotion_by_force_ends_when_the_host_has_everything() -> None:
    member = healthy(B)
    member.is_forced = True
    sees(member, Seen(5, BOTH, A), 1.0)
    assert not member.is_forced
    assert not sees(member, Seen(6, ALONE, None), 5.0)


@pytest.mark.requirement("R264")
@pytest.mark.parametrize("in_sync", ["ab", "b"])
@pytest.mark.parametrize("how", ["new", "forced", "brought"])
def test_a_new_disk_takes_nothing_over_from_a_host_that_has_everything(in_sync: str, how: str) -> None:
    """The standing means the disk before. A founder that was killed before it had anything goes on."""
    member = Member(B, may_found=True, is_new=how != "brought")
    member.disks_answered(float("inf"))
    member.is_forced = how == "forced"
    member.tick(1.0)
    seen = Seen(5, Standing(3, "b", frozenset(in_sync)), None)
    member.answered(Answer(asked(member)[0], True, seen), 1.0)
    assert bool(taken(member)) == (how != "new" or in_sync == "b")


@pytest.mark.requirement("R264")
def test_a_host_that_lacks_a_store_takes_nothing_over_unless_it_may_have_the_lease_already() -> None:
    free, taken_by_a = Seen(5, BOTH, None), Seen(6, BOTH._replace(epoch=4), A)
    member = healthy(B)
    assert member.lacks_store()
    assert not sees(member, free, 1.0)
    member = healthy(B)
    assert sees(member, free, 1.0)
    assert not member.lacks_store(), "it has asked for the lease"
    member.answered(Answer(member._numbers, False, taken_by_a), 1.1)
    assert member.lacks_store(), "somebody else got it"
    begun = primary(BOTH)
    assert not begun.lacks_store()


@pytest.mark.parametrize(
    ("standing", "is_new", "restorable"), [(BOTH, False, BOTH), (BOTH, True, None), (ALONE, False, None)]
)
def test_only_who_had_everything_may_have_the_standing_be_as_it_was(
    standing: Standing, is_new: bool, restorable: Standing | None
) -> None:
    """Of one that took over by force nobody knows who has everything."""
    member = healthy(B)
    member.is_new, member.is_forced = is_new, restorable is None
    assert sees(member, Seen(5, standing, None), 1.0)
    assert member.restorable == restorable


def test_a_disk_that_hangs_ends_the_renewals() -> None:
    member = primary(ALONE)
    taken(member)
    member.disks_answered(100.0)
    member.tick(101.0 + DISK_S)
    assert taken(member) == []


def test_whose_lease_is_anothers_ends() -> None:
    member = primary(ALONE)
    taken(member)
    member.tick(101.0)
    number, _ = asked(member)
    member.answered(Answer(number, False, Seen(7, Standing(4, "b", frozenset("b")), B)), 101.0)
    assert taken(member) == [End()]
    member.tick(200.0)
    assert taken(member) == []


def test_a_lost_answer_of_a_take_is_found_out_and_the_lease_renewed_before_anything() -> None:
    member = healthy()
    member.tick(1.0)
    number, _ = asked(member)
    member.answered(Answer(number, True, Seen(5, ALONE, None)), 1.0)
    asked(member)
    member.tick(1.0 + ANSWER_S)
    number, request = asked(member)
    assert request == Read()
    member.answered(Answer(number, True, Seen(6, ALONE, A)), 2.1)
    assert taken(member) == [Begin(3, None)]
    member.tick(2.2)
    assert asked(member)[1] == Renew()


def test_a_silent_standby_is_let_go_when_the_store_says_so() -> None:
    member = primary(BOTH)
    assert Begin(3, 1) in taken(member)
    member.standby_is_silent(101.0)
    member.tick(101.1 + SILENT_S)
    number, request = asked(member)
    assert request == Swap(6, ALONE)
    assert taken(member) == []
    member.answered(Answer(number, True, Seen(7, ALONE, A)), 104.0)
    assert taken(member) == [Release()]


def test_a_standby_is_not_let_go_for_a_process_of_this_host_that_is_away() -> None:
    member = primary(BOTH)
    member.standby_is_silent(101.0)
    member.standby_is_not_asked()
    member.tick(101.0 + SILENT_S + 0.1)
    assert isinstance(asked(member)[1], Renew)


def test_by_policy_a_silent_standby_is_waited_for() -> None:
    member = primary(BOTH, may_be_alone=False)
    taken(member)
    member.standby_is_silent(101.0)
    member.tick(200.0)
    assert asked(member)[1] == Renew()


def test_by_policy_a_standby_that_lacks_much_is_put_out_and_nothing_counts_before_it_is_back() -> None:
    """It is not waited for as it is: what it lacks it gets only when nobody takes it for one that has everything."""
    member = primary(BOTH, may_be_alone=False)
    taken(member)
    member.standby_is_silent(101.0, lacks_much=True)
    member.tick(101.0 + SILENT_S + 0.1)
    number, request = asked(member)
    assert request == Swap(6, ALONE)
    member.answered(Answer(number, True, Seen(7, ALONE, A)), 103.2)
    assert taken(member) == [Require(BY_POLICY)]
    member.standby_has_all("b", BY_POLICY)
    member.tick(105.0)
    number, request = asked(member)
    assert request == Renew(), "nobody knows since when everything waits for it"
    member.answered(Answer(number, True, Seen(7, ALONE, A)), 105.0)
    taken(member)
    member.standby_follows()
    assert taken(member) == [Require(2)]
    member.standby_has_all("b", 2)
    member.tick(107.0)
    assert asked(member)[1] == Swap(7, BOTH)


@pytest.mark.requirement("R267")
def test_by_policy_nothing_counts_at_a_primary_that_begins_alone_before_its_standby_has_everything() -> None:
    """It began the pair, took over, or was started again while its standby got a copy: all is on one disk only."""
    member = primary(ALONE, may_be_alone=False)
    assert Begin(3, BY_POLICY) in taken(member)
    assert member.required_by == BY_POLICY
    member.standby_follows()
    assert taken(member) == [Require(1)]
    member.standby_has_all("b", 1)
    member.tick(102.0)
    assert asked(member)[1] == Swap(6, BOTH)


def test_a_standby_is_let_in_when_it_has_all_since_the_order_that_holds() -> None:
    member = primary(ALONE)
    taken(member)
    member.standby_follows()
    assert taken(member) == [Require(1)]
    member.standby_has_all("b", 0)
    member.tick(100.1)
    assert asked(member)[1] == Renew()
    member.standby_has_all("b", 1)
    member.tick(102.0)
    assert asked(member)[1] == Swap(6, BOTH)


def test_a_request_that_may_still_arrive_is_made_void_before_a_standby_is_let_go() -> None:
    """Else the standby could be in the in-sync set later on, of which nobody knew."""
    member = primary(ALONE)
    taken(member)
    member.standby_follows()
    member.standby_has_all("b", 1)
    taken(member)
    member.tick(100.1)
    assert asked(member)[1] == Swap(6, BOTH)
    member.standby_is_silent(100.2)
    member.tick(100.3 + ANSWER_S + SILENT_S)
    number, request = asked(member)
    assert request == Swap(6, ALONE)
    member.answered(Answer(number, False, Seen(7, BOTH, A)), 104.0)
    assert taken(member) == []
    member.tick(104.1)
    number, request = asked(member)
    assert request == Swap(7, ALONE)
    member.answered(Answer(number, True, Seen(8, ALONE, A)), 104.2)
    assert taken(member) == [Release()]
