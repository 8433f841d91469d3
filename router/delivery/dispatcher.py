"""From a retired round to its receivers: who gets which rows.

And the choice where only one may (design section 6).

Plain rows cost nothing per message here: a set of filters is resolved to sessions, and its batch goes to
each of them as it is. Rows that need a choice (shared subscriptions, deliver-to-one) come packed one by
one, and each is given to whom it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire
from router.delivery.egress import Delivery, Egress
from router.delivery.queues import Bundle

if TYPE_CHECKING:
    import random

    from router.delivery.eliding import Eliding
    from router.matching.interest import Filter, FilterSet, Interest
    from router.matching.round import ChoiceResult, Round
    from router.session import Session

#: What one session gets by choice: share text or None -> packed rows.
Chosen = dict["Session", dict[str | None, list[bytes]]]


class Dispatcher:
    """Sends retired rounds to the sessions that match."""

    def __init__(
        self, interest: Interest[Session], egress: Egress, eliding: Eliding, rng: random.Random
    ) -> None:
        self._interest = interest
        self._egress = egress
        self._eliding = eliding
        self._random = rng.random

    def deliver(self, a_round: Round[Session], now: float) -> None:
        """Give a round to everybody it is for."""
        plain = a_round.plain
        if not a_round.choice and len(plain) == 1:
            only = plain[0]
            delivery = Delivery([Bundle(only.rows, only.batch, only.classes)])
            for session in self._interest.resolve(only.set):
                self._offer(session, delivery, a_round.session, now)
        elif plain or a_round.choice:
            self._deliver_mixed(a_round, now)

    def _deliver_mixed(self, a_round: Round[Session], now: float) -> None:
        """Join what each session gets of several sets; sessions with the same sets share the joined batch."""
        plain = a_round.plain
        taken: dict[Session, list[int]] = {}
        for index, result in enumerate(plain):
            for session in self._interest.resolve(result.set):
                taken.setdefault(session, []).append(index)
        chosen: Chosen = {}
        for choice in a_round.choice:
            self._choose(choice, a_round.session, chosen)
        joined: dict[tuple[int, ...], Delivery] = {}
        for session, indices in taken.items():
            extra = chosen.pop(session, None)
            key = tuple(indices)
            delivery = joined.get(key)
            if delivery is None or extra is not None:
                delivery = _join(a_round, indices, extra or {})
                if extra is None:
                    joined[key] = delivery
            self._offer(session, delivery, a_round.session, now)
        for session, extra in chosen.items():
            self._offer(session, _join(a_round, [], extra), None, now)

    def _offer(self, session: Session, delivery: Delivery, publisher: Session | None, now: float) -> None:
        if session.link is not None and publisher is not None and publisher.link is not None:
            return  # what came over a link is served here only: no transit, so no loop
        if session is publisher and session.no_local:
            # Only plain rows are held back: what came by choice was chosen knowing about no-local (R27).
            delivery_or_none = _without_plain(delivery)
            session.count(
                "discard.no-local", delivery.rows - (delivery_or_none.rows if delivery_or_none else 0)
            )
            if delivery_or_none is None:
                return
            delivery = delivery_or_none
        if session.eliding is not None:
            self._eliding.offer(session, delivery, now)
        else:
            self._egress.offer(session, delivery, now)

    def _choose(self, choice: ChoiceResult[Session], publisher: Session, chosen: Chosen) -> None:
        already = self._interest.resolve(choice.plain_set) if choice.plain_set is not None else {}
        if (
            publisher.no_local and publisher in already
        ):  # its plain copy is held back, so it has none yet (R27)
            already = {session: None for session in already if session is not publisher}
        rows: list[bytes] = wire.unpack(choice.batch)
        if choice.dto:
            candidates = _candidates(choice.set, publisher)
            if not candidates:
                publisher.count("discard.no-local", len(rows))
                return
            for row in rows:
                choice.set.round_robin += 1
                self._give(candidates[choice.set.round_robin % len(candidates)], row, already, chosen)
            return
        groups = [list(a_filter.members.items()) for a_filter in choice.set.filters if a_filter.members]
        for row in rows:
            for group in groups:
                self._give(group, row, already, chosen)

    def _give(
        self, group: list[tuple[Session, list[str]]], row: bytes, already: dict[Session, None], chosen: Chosen
    ) -> None:
        """Give a row to one member of a group, each equally likely (R19).

        One that has it already gets no second copy (R86).
        """
        session, texts = group[int(self._random() * len(group))] if len(group) > 1 else group[0]
        if session in already:
            return
        share = texts[0] if texts else None
        chosen.setdefault(session, {}).setdefault(share, []).append(row)


def _candidates(a_set: FilterSet[Session], publisher: Session) -> list[list[tuple[Session, list[str]]]]:
    """Give the candidates of the best priority level present (R73).

    A candidate is a list: one session with a plain subscription, or the members of a share group, which
    stands for one candidate with the priority of its best member.
    """
    levels: dict[int, list[list[tuple[Session, list[str]]]]] = {}
    sessions: dict[Session, None] = {}
    for a_filter in a_set.filters:
        if a_filter.kind == wire.KIND_SHARED:
            _add_group(a_filter, levels)
        else:
            sessions.update(dict.fromkeys(a_filter.members))
    for session in sessions:
        if session.link is None and not session.closed and not (session is publisher and session.no_local):
            levels.setdefault(session.local_priority, []).append([(session, [])])
    return levels[min(levels)] if levels else []


def _add_group(a_filter: Filter[Session], levels: dict[int, list[list[tuple[Session, list[str]]]]]) -> None:
    members = [(session, texts) for session, texts in a_filter.members.items() if not session.closed]
    if members:
        best = min(session.local_priority for session, _ in members)
        levels.setdefault(best, []).append([m for m in members if m[0].local_priority == best])


def _join(a_round: Round[Session], indices: list[int], extra: dict[str | None, list[bytes]]) -> Delivery:
    """Make the delivery of one session: its plain rows in one batch.

    And one batch for each shared subscription.
    """
    batches = [(a_round.plain[i].rows, a_round.plain[i].batch) for i in indices]
    classes = 0
    for i in indices:
        classes |= a_round.plain[i].classes
    for choice in a_round.choice if None in extra else ():
        classes |= choice.classes
    by_choice = extra.get(None)
    if by_choice:
        batches.append((len(by_choice), wire.join_rows(by_choice)))
    bundles = []
    unsorted = len(a_round.plain) + len(a_round.choice) > 1
    if batches:
        batch = batches[0][1] if len(batches) == 1 else wire.join_batches(batches)
        bundles.append(Bundle(sum(rows for rows, _ in batches), batch, classes, unsorted=unsorted))
    for share, rows in extra.items():
        if share is not None:
            bundles.append(Bundle(len(rows), wire.join_rows(rows), wire.CLASS_COS1, share, unsorted=unsorted))
    return Delivery(bundles)


def _without_plain(delivery: Delivery) -> Delivery | None:
    bundles = [bundle for bundle in delivery.bundles if bundle.share is not None]
    return Delivery(bundles) if bundles else None
