"""From a retired round to its receivers: which session gets which rows, and the choice where only one may.

Plain rows cost nothing per message here: a set of filters is resolved to sessions, and its batch goes to
each of them as it is. Rows that need a choice (shared subscriptions, deliver-to-one) come packed one by
one, and each is given to whom it is for.

Of deliver-to-one (R68 to R79) clients of this node come first: those of the best priority level that is there, one
after the other. Only if there is none a neighbour gets it, and the choice is made there, among its clients: the row
travels *open*. So at most one copy in the whole mesh is open, and deliver-always subscribers get theirs everywhere.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from angarium import wire
from router.delivery.crowds import Crowds
from router.delivery.egress import delivery_of, plain_delivery
from router.sessions.queues import Bundle, open_rows

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from router.delivery.delivery import Delivery
    from router.delivery.egress import Egress
    from router.delivery.eliding import Eliding
    from router.ground.ground import Counters
    from router.sessions.interest import Filter, FilterSet, Interest
    from router.sessions.neighbour import Neighbour
    from router.sessions.round import ChoiceResult, Round
    from router.sessions.session import Session

#: One session with a plain subscription, or the members of a share group with the texts of their subscriptions.
Candidate = list[tuple["Session", tuple[str, ...]]]
_Levels = dict[int, list[Candidate]]


def candidates(a_set: FilterSet[Session], publisher: Session) -> list[Candidate]:
    """Give the candidates of the best priority level present on this node (R72, R73).

    A share group stands for one candidate with the priority of its best member.
    """
    levels: _Levels = {}
    sessions: dict[Session, None] = {}
    for a_filter in a_set.filters:
        if a_filter.kind == wire.KIND_SHARED:
            _add_group(a_filter, publisher, levels)
        else:
            sessions.update(dict.fromkeys(a_filter.members))
    for session in sessions:
        if (
            not session.is_neighbour
            and not session.closed
            and not (session is publisher and session.no_local)
        ):
            levels.setdefault(_priority(session, publisher), []).append([(session, ())])
    return levels[min(levels)] if levels else []


def _groups(a_set: FilterSet[Session]) -> list[Candidate]:
    """Give the members of each share group of a set, of those where there is anybody left."""
    return [
        group
        for a_filter in a_set.filters
        if a_filter.members
        and (group := [member for member in a_filter.members.items() if not member[0].closed])
    ]


def _add_group(a_filter: Filter[Session], publisher: Session, levels: _Levels) -> None:
    members = [(session, texts) for session, texts in a_filter.members.items() if not session.closed]
    if members:
        best = min(_priority(session, publisher) for session, _ in members)
        group = [member for member in members if _priority(member[0], publisher) == best]
        levels.setdefault(best, []).append(group)


def _priority(session: Session, publisher: Session) -> int:
    """Give the priority of a session for what was published here, or on another node."""
    return session.network_priority if publisher.is_neighbour else session.local_priority


def best_neighbour(a_set: FilterSet[Session], publisher: Session) -> Session | None:
    """Give the neighbour that gets a message for which there is no client here (R75-R77): always the same one.

    What came over a link goes to none.
    """
    if publisher.is_neighbour:
        return None
    best: tuple[int, str] | None = None
    found: Session | None = None
    for a_filter in a_set.filters:
        for session in a_filter.members:
            if session.link is None or session.closed or a_filter.kind != wire.KIND_PLAIN:
                continue
            rank = (session.link.imports[a_filter.pattern] >> wire.WISH_DTO_SHIFT, session.link.node)
            if best is None or rank < best:
                best, found = rank, session
    return found


#: What one session gets by choice: share text or None -> packed rows; nothing of what it has already.
Chosen = dict["Session", dict[str | None, list[bytes]]]
#: Neighbour -> indices of the rows for which it has to choose.
Opened = dict["Session", list[int]]


class Dispatcher:
    """Sends retired rounds to the sessions that match."""

    def __init__(
        self,
        interest: Interest[Session],
        egress: Egress,
        eliding: Eliding,
        rng: random.Random,
        counters: Counters,
    ) -> None:
        self._interest = interest
        self.crowds = Crowds(interest, counters, self.deliver)
        self.egress = egress
        self._eliding = eliding
        self._random = rng.random
        self._counters = counters

    def deliver(self, a_round: Round[Session], now: float) -> None:
        """Give a round to everybody it is for; if these are very many, to some at a time."""
        plain, crowds = a_round.plain, self.crowds
        if (
            self._interest.memberships > crowds.members_min
            and a_round.pieces is None
            and (crowds.is_for_many(a_round) or (crowds.lines and crowds.has_to_wait(a_round)))
        ):
            crowds.take(a_round)
            return
        if not a_round.choice and len(plain) == 1:
            only = plain[0]
            delivery = plain_delivery(only.rows, only.batch, only.classes, only.topics)
            for session in self._interest.resolve(only.set):
                self._offer(session, delivery, a_round, now)
        elif plain or a_round.choice:
            self._deliver_mixed(a_round, now)

    def _deliver_mixed(self, a_round: Round[Session], now: float) -> None:
        """Join what each session gets of several sets; sessions with the same sets share the joined batch."""
        chosen: Chosen = {}
        opened: Opened = {}
        groups: dict[FilterSet[Session], list[Candidate]] = {}
        for choice in a_round.choice:
            self._choose(choice, a_round, chosen, opened, groups)
        if a_round.choice and a_round.pieces is not None:
            a_round.plain = a_round.pieces.take_early((*chosen, *opened))
        plain = a_round.plain
        taken = self._interest.places([one.set for one in plain])
        if plain and plain[0].unpacked is not None and any(len(some) < len(plain) for some in taken.values()):
            a_round.plain = [one.packed() for one in plain]
        joined: dict[tuple[int, ...], Delivery] = {}
        for session, indices in taken.items():
            extra = chosen.pop(session, None)
            key = tuple(indices)
            delivery = joined.get(key)
            special = extra or session in opened
            if delivery is None or special:
                delivery = _join(a_round, indices, extra or {}, opened.get(session, ()))
                if not special:
                    joined[key] = delivery
            self._offer(session, delivery, a_round, now)
        for session, extra in chosen.items():
            if extra:
                offer = self.egress.offer if session.eliding is None else self._eliding.offer
                offer(session, _join(a_round, [], extra, opened.get(session, ())), now)

    def _offer(self, session: Session, delivery: Delivery, a_round: Round[Session], now: float) -> None:
        """Offer what a round has for a session, without what it does not get."""
        left: Delivery | None = delivery
        if session.link is not None:
            left = _for_neighbour(session.link, delivery, a_round)
        elif a_round.kept is not None and self._has_given(session, a_round.session):
            left = self._kept(delivery, a_round.kept)
        elif session is a_round.session and session.no_local:
            # Only plain rows are held back: what came by choice was chosen knowing about no-local (R27).
            left = _without_plain(delivery)
            session.count("discard.no-local", delivery.rows - (left.rows if left else 0))
        if left is not None:
            offer = self.egress.offer if session.eliding is None else self._eliding.offer
            offer(session, left, now)

    def is_for_others(self, a_round: Round[Session]) -> bool:
        """Tell whether anybody but the session that brought it gets something of a round."""
        if a_round.choice or a_round.endpoints:
            return True
        found = [self._interest.resolve(one.set) for one in a_round.plain]
        return any(len(sessions) > 1 or a_round.session not in sessions for sessions in found if sessions)

    def _has_given(self, session: Session, publisher: Session) -> bool:
        """Tell whether clients of a gateway may have a round already: it is theirs, or came from one that is gone."""
        return session is publisher or (publisher.closed and session.kind.carries_clients)

    def _kept(self, delivery: Delivery, indices: frozenset[int]) -> Delivery | None:
        """Give what of a round its gateway gets back: its clients have the rest."""
        left = _rows_of(delivery, lambda index: index in indices) if indices else None
        self.egress.count_given(
            delivery.rows - (left.rows if left else 0), delivery.size - (left.size if left else 0)
        )
        return left

    def _choose(
        self,
        choice: ChoiceResult[Session],
        a_round: Round[Session],
        chosen: Chosen,
        opened: Opened,
        known: dict[FilterSet[Session], list[Candidate]],
    ) -> None:
        publisher = a_round.session
        already: Mapping[Session, object] = (
            self._interest.resolve(choice.plain_set) if choice.plain_set is not None else {}
        )
        if (
            publisher.no_local and publisher in already
        ):  # its plain copy is held back, so it has none yet (R27)
            already = {session: None for session in already if session is not publisher}
        rows: list[bytes] = wire.unpack(choice.batch)
        if choice.dto:
            if publisher.is_neighbour:
                rows = [row for row in rows if wire.row_index(row) in a_round.open]
            self._give_to_one(choice.set, rows, publisher, already, chosen, opened)
            return
        groups = known.get(choice.set)
        if groups is None:  # hundreds of topics may be for the same hundreds of groups
            groups = known[choice.set] = _groups(choice.set)
        for row in rows:
            for group in groups:
                self._give(group, row, already, chosen)

    def _give_to_one(
        self,
        a_set: FilterSet[Session],
        rows: list[bytes],
        publisher: Session,
        already: Mapping[Session, object],
        chosen: Chosen,
        opened: Opened,
    ) -> None:
        """Give each row to one candidate of this node, one after the other; if there is none, to a neighbour."""
        found = candidates(a_set, publisher)
        if found:
            for row in rows:
                a_set.round_robin += 1
                self._give(found[a_set.round_robin % len(found)], row, already, chosen)
            return
        neighbour = best_neighbour(a_set, publisher)
        if neighbour is None:
            if rows:
                self._for_nobody(publisher, len(rows))
            return
        opened.setdefault(neighbour, []).extend(wire.row_index(row) for row in rows)
        for row in rows:
            self._give([(neighbour, ())], row, already, chosen)

    def _for_nobody(self, publisher: Session, rows: int) -> None:
        """Count rows that were for one client, if there had been any."""
        if publisher.is_neighbour:
            publisher.count("discard.no-subscription-match", rows)
            self._counters.totals["discard.no-subscription-match"] += rows
        else:
            publisher.count("discard.no-local", rows)

    def _give(
        self,
        group: list[tuple[Session, tuple[str, ...]]],
        row: bytes,
        already: Mapping[Session, object],
        chosen: Chosen,
    ) -> None:
        """Give a row to one member of a group, each equally likely (R19).

        One that has it already gets no second copy (R86).
        """
        session, texts = group[int(self._random() * len(group))] if len(group) > 1 else group[0]
        its = chosen.setdefault(session, {})
        if session not in already:
            its.setdefault(texts[0] if texts else None, []).append(row)


def _join(
    a_round: Round[Session],
    indices: list[int],
    extra: dict[str | None, list[bytes]],
    opened: Sequence[int] = (),
) -> Delivery:
    """Make the delivery of one session: its plain rows in one batch.

    And one batch for each shared subscription.
    """
    if a_round.whole is not None and len(indices) == len(a_round.plain) and not (extra or opened):
        classes = reduce(or_, [one.classes for one in a_round.plain])
        return delivery_of(Bundle(a_round.rows, a_round.whole, classes))
    plain = [a_round.plain[i] for i in indices]
    batches = [(one.rows, one.batch) for one in plain]
    classes = 0
    for one in plain:
        classes |= one.classes
    for choice in a_round.choice if None in extra else ():
        classes |= choice.classes
    by_choice = extra.get(None)
    if by_choice:
        batches.append((len(by_choice), wire.join_rows(by_choice)))
    bundles = []
    unsorted = len(a_round.plain) + len(a_round.choice) > 1
    if batches:
        batch = batches[0][1] if len(batches) == 1 else wire.join_batches(batches)
        rows = sum([count for count, _ in batches])
        bundles.append(Bundle(rows, batch, classes, unsorted=unsorted, opened=opened))
    for share, packed in extra.items():
        if share is not None:
            bundle = Bundle(len(packed), wire.join_rows(packed), wire.CLASS_COS1, share, unsorted=unsorted)
            bundles.append(bundle)
    return delivery_of(*bundles)


def _for_neighbour(link: Neighbour, delivery: Delivery, a_round: Round[Session]) -> Delivery | None:
    """Give what of a round goes over a link: what came over one does not, so no loop; nor what its queue has."""
    if a_round.session.is_neighbour:
        return None
    if link.node not in a_round.spooled_for:
        return delivery
    spooled = a_round.spooled_for[link.node]
    return None if spooled is None else _rows_of(delivery, lambda index: index not in spooled)


def _rows_of(delivery: Delivery, is_wanted: Callable[[int], bool]) -> Delivery | None:
    """Give the rows with some indices of the delivery of a neighbour or gateway, which is one bundle."""
    (bundle,) = delivery.bundles
    rows = [row for row in open_rows(bundle) if is_wanted(row[wire.ROW_INDEX])]
    if not rows:
        return None
    return delivery_of(Bundle(len(rows), wire.pack(rows), bundle.classes, opened=bundle.opened))


def _without_plain(delivery: Delivery) -> Delivery | None:
    bundles = [bundle for bundle in delivery.bundles if bundle.share is not None]
    return delivery_of(*bundles) if bundles else None
