"""A gateway of the simulation: its clients come, want things, take each other's names and leave; and it dies at times.

It keeps the rules that the router relies on: numbers rise, and a client has one request under way. When its connection
breaks off, those that were attached stay, and are attached again by the tokens that they were given. It writes down
what it is told, and what comes for its clients.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.topic import parse_filter
from angarium.trie import FilterTrie
from tests.simulation.gateways.will_story import TOPIC
from tests.simulation.simulated_network import Connection, Endpoint, Frames

if TYPE_CHECKING:
    import random

    from tests.simulation.gateways.will_story import WillStory
    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import SimulatedNode

SECRET: Final = "of this run"
PASSWORD: Final = "right"
#: Whoever has a name has its username.
USERNAMES: Final = {"c0": "app", "c1": "app", "c2": "guarded", "c3": "narrow", "c4": "narrow", "c5": "narrow"}
PLAIN: Final = ["t/1", "t/*", "t/>", ">", "#noexport/t/2", "u/1"]
SHARED: Final = ["#share/g/t/>", "#share/h/t/1"]
TOPICS: Final = ["t/1", "t/2", "t/3/4", "u/1", "v"]
KEEPALIVE_S: Final = 0.15
RETURN_MAX_S: Final = 0.4
PACE_S: Final = 0.03


class Guest:
    """One client of a gateway."""

    def __init__(self, name: str, will: bytes, kept_s: int) -> None:
        self.name = name
        #: The payload of his will, and for how long his session is kept; empty: he has none.
        self.will, self.kept_s = will, kept_s
        #: The will as HELLO says it.
        self.will_said: list[Any] | None = None
        self.is_attached = False
        #: He has left before he was attached.
        self.is_leaving = False
        self.rights: list[Any] = []
        #: With which he is attached again when the connection has broken off; empty: he has not been attached.
        self.token = b""
        #: Filters that are in force.
        self.held: set[str] = set()
        #: The request under way: its operation and filters.
        self.asked: tuple[bytes, list[str]] | None = None
        #: Share text and number of each message that came for him alone.
        self.messages: list[tuple[str, int]] = []


class SimulatedGateway:
    """One gateway process after another, of one index."""

    def __init__(
        self, loop: Loop, rng: random.Random, node: SimulatedNode, index: int, story: WillStory
    ) -> None:
        self._story = story
        self._loop, self._rng, self._node, self.index = loop, rng, node, index
        self._connection: Connection | None = None
        self.is_open = False
        #: Whether clients act.
        self.is_busy = True
        self._incarnation, self._numbers, self._round, self._published = 1, 0, 0, 0
        self.guests: dict[int, Guest] = {}
        #: Those that wait for the next connection, and how many were attached again.
        self._away: list[Guest] = []
        self.attached_again = 0
        #: Those that have said BYE and are not answered, and whether they are done.
        self._leaving: dict[int, tuple[Guest, bool]] = {}
        #: Payloads of wills that came, since they were last cleared.
        self.wills: Counter[bytes] = Counter()
        #: What broke a rule.
        self.broken: list[str] = []
        #: Sessions that it began.
        self._sessions = 0
        #: Index of a gateway and number of its session -> number of the newest message of it.
        self._newest: dict[tuple[int, int], int] = {}
        #: Its session and the number of each message that it has given to its clients itself.
        self._given: set[tuple[int, int]] = set()
        #: (index of a gateway, number) of what came for its clients together, since it was last cleared.
        self.messages: Counter[tuple[int, int]] = Counter()

    # -- the connection --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Connect if need be, keep alive, and let clients do something."""
        if self._connection is None:
            self._connect()
        elif self.is_open and self.is_busy:
            self._act()
        self._loop.after(self._rng.expovariate(1 / PACE_S), self.run)

    def keep_alive(self) -> None:
        """Say something now and then."""
        if self.is_open:
            self._send([wire.PING, wire.pack([1])])
        self._loop.after(KEEPALIVE_S, self.keep_alive)

    def _connect(self) -> None:
        if not self._node.is_listening:
            return
        connection: Connection | None = None

        def arrived(frames: Frames) -> None:
            if connection is not None and connection is self._connection:
                self._receive(frames)

        def ended() -> None:
            if connection is not None and connection is self._connection:
                away = [guest for guest in self.guests.values() if guest.token and not guest.is_leaving]
                self._away += away
                self._forget()

        self._sessions += 1
        connection = self._connection = self._node.accept(Endpoint(arrived, ended), "")
        who = {"name": "test", "index": self.index, "incarnation": self._incarnation}
        hello = {
            "version": 1,
            "username": wire.GATEWAY_USERNAME,
            "gateway": who,
            "behalf": {"secret": SECRET},
        }
        self._send([wire.HELLO, wire.pack({**hello, "credit": [1 << 40, 1 << 40], "keepalive_ms": 500})])

    def _forget(self) -> None:
        self._connection, self.is_open, self._round = None, False, 0
        for guest in self.guests.values():
            if guest in self._away:
                continue
            self._story.lost(guest.will, guest.kept_s)
            if not guest.is_attached:
                self._story.unknown.add(guest.will)
        self._story.unknown.update(guest.will for guest, _ in self._leaving.values())
        self.guests, self._leaving = {}, {}

    def die(self) -> None:
        """End without a word; another process comes."""
        for guest in self._away:
            self._story.lost(guest.will, guest.kept_s)
        self._away = []
        if self._connection is not None:
            self._connection.close_near(is_noticed=self._rng.random() < 0.7)
        self._forget()
        self._incarnation += 1
        self._numbers = 0

    def _send(self, frames: Frames) -> None:
        assert self._connection is not None
        self._connection.up.send(frames)

    # -- clients ---------------------------------------------------------------------------------------------

    def _act(self) -> None:
        rng, choice = self._rng, self._rng.random()
        free = [number for number, guest in self.guests.items() if guest.is_attached and guest.asked is None]
        if choice < 0.15 or not free:
            self._attach(rng.choice(list(USERNAMES)))
        elif choice < 0.22:
            self._leave(rng.choice(list(self.guests)))
        elif choice < 0.6:
            self._ask(rng.choice(free))
        elif choice < 0.62:
            self.die()
        else:
            self.publish(rng.choices(TOPICS, k=rng.randint(1, 4)))

    def _say(self, number: int, operation: bytes, header: Any) -> None:
        self._send([wire.ATTACHED, number.to_bytes(8, "big"), operation, wire.pack(header)])

    def _attach(self, name: str) -> None:
        rng = self._rng
        self._numbers += 1
        behalf: dict[str, Any] = {"secret": SECRET, "address": "127.0.0.1", "takes_over": True}
        behalf["clean"] = rng.random() < 0.3
        will, kept_s = b"", rng.choice([0, 1, 2, 5])
        if rng.random() < 0.7:
            behalf["will"] = self._story.new(name, min(kept_s, rng.choice([0, 0, 1, 2, 5])), 0)
            will = behalf["will"][4]
        guest = self.guests[self._numbers] = Guest(name, will, kept_s)
        guest.will_said = behalf.get("will")
        login = {"username": USERNAMES[name], "password": PASSWORD, "client_name": name, "behalf": behalf}
        self._say(self._numbers, wire.HELLO, {"version": 1, **login})

    def _attach_again(self) -> None:
        away, self._away = self._away, []
        for guest in away:
            self._numbers += 1
            guest.is_attached, guest.asked = False, None
            self.guests[self._numbers] = guest
            behalf: dict[str, Any] = {"secret": SECRET, "address": "127.0.0.1", "takes_over": False}
            if guest.will:
                behalf["will"] = guest.will_said
            login = {"username": USERNAMES[guest.name], "client_name": guest.name, "token": guest.token}
            self._say(self._numbers, wire.HELLO, {"version": 1, **login, "behalf": behalf})

    def _leave(self, number: int) -> None:
        guest = self.guests[number]
        if guest.is_attached:
            kept_s = self._rng.choice([None, guest.kept_s, 1])
            self._say(number, wire.BYE, [] if kept_s is None else [kept_s])
            if kept_s is not None:
                self._story.lost(guest.will, kept_s)
            self._leaving[number] = guest, kept_s is None
            del self.guests[number]
        else:
            guest.is_leaving = True

    def _ask(self, number: int) -> None:
        rng = self._rng
        operation = rng.choice([wire.SUBSCRIBE, wire.SUBSCRIBE, wire.UNSUBSCRIBE])
        texts = rng.choices(PLAIN + SHARED, k=rng.randint(1, 4))
        self._want(number, operation, texts)

    def _want(self, number: int, operation: bytes, texts: list[str]) -> None:
        self.guests[number].asked = operation, texts
        self._say(number, operation, [1, [[text, wire.SUBSCRIBE_DELIVER_ALWAYS] for text in texts], None])

    def publish(self, topics: list[str]) -> list[int]:
        """Publish for clients, and give the numbers of the messages."""
        numbers = list(range(self._published + 1, self._published + 1 + len(topics)))
        self._published += len(topics)
        self._round += 1
        payloads = [wire.pack([self.index, self._sessions, number]) for number in numbers]
        rows = [[place, topic, 0, None, None, payloads[place]] for place, topic in enumerate(topics)]
        head: list[Any] = [self._round, 0, True, [[0, len(rows)]]]
        if self._rng.random() < 0.7:
            kept = [place for place in range(len(rows)) if self._rng.random() < 0.3]
            self._hand_over([place for place in range(len(rows)) if place not in kept], topics, numbers)
            head.append(self._told_kept(kept, len(rows)))
        self._send([wire.PUBLISH, wire.pack(head), wire.pack(rows)])
        return numbers

    def _told_kept(self, kept: list[int], _rows: int) -> list[int]:
        """Give what a round says of its kept rows."""
        return kept

    def _hand_over(self, places: list[int], topics: list[str], numbers: list[int]) -> None:
        """Give some of the messages that leave to the clients here."""
        trie: FilterTrie[str] = FilterTrie()
        for text in {text for guest in self.guests.values() for text in guest.held}:
            if not text.startswith("#share/"):
                trie.add(parse_filter(text).pattern, text)
        for place in places:
            self._given.add((self._sessions, numbers[place]))
            if trie.match(topics[place]):
                self.messages[self.index, numbers[place]] += 1

    # -- what it is told -------------------------------------------------------------------------------------

    def _receive(self, frames: Frames) -> None:
        operation = frames[0]
        if operation == wire.WELCOME:
            self.is_open = True
            self._attach_again()
        elif operation == wire.CLOSED:
            assert self._connection is not None
            self._connection.close_near(is_noticed=True)
            self._forget()
        elif operation == wire.PING:
            self._send([wire.PONG, frames[1]])
        elif operation == wire.DELIVER:
            self._delivered(frames)
        elif operation == wire.RIGHTS:
            rights, numbers = wire.unpack(frames[1])
            for number in numbers:
                if number in self.guests:
                    self.guests[number].rights = rights
        elif operation == wire.ATTACHED:
            number = int.from_bytes(frames[1], "big")
            if number in self.guests:
                self._told(number, self.guests[number], frames[2:])
            elif frames[2] == wire.CLOSED and number in self._leaving:
                self._has_left(*self._leaving.pop(number), wire.unpack(frames[3])[0])

    def _delivered(self, frames: Frames) -> None:
        flags, parts, _ = wire.unpack(frames[1])
        rows = [one for batch in frames[2:] for one in wire.unpack(batch)]
        if flags & wire.DELIVER_UNSORTED:
            rows.sort(key=lambda one: one[wire.ROW_INDEX])
        if any(share is not None for _, share in parts):
            self.broken.append(f"gateway {self.index} is given what was chosen for one client")
        self.wills.update(
            bytes(one[wire.ROW_PAYLOAD]) for one in rows if one[wire.ROW_TOPIC].startswith(TOPIC)
        )
        for one in rows:
            if one[wire.ROW_TOPIC].startswith(TOPIC):
                continue
            publisher, session, number = wire.unpack(one[wire.ROW_PAYLOAD])
            if publisher == self.index and (session, number) in self._given:
                self.broken.append(f"gateway {self.index} is given message {number}, which its clients have")
            if number <= self._newest.get((publisher, session), 0):
                self.broken.append(
                    f"gateway {self.index} is given message {number} of {publisher} twice, or late"
                )
            self._newest[publisher, session] = number
            self.messages[publisher, number] += 1

    def _has_left(self, guest: Guest, is_done: bool, code: int) -> None:
        if code:  # he was ended before the router heard him
            self._story.unknown.add(guest.will)
        elif is_done:
            self._story.done(guest.will)

    def _told(self, number: int, guest: Guest, frames: Frames) -> None:
        operation = frames[0]
        if operation == wire.CLOSED:
            if guest.token and not guest.is_attached:
                self._refused_again(guest, wire.unpack(frames[1])[0])
            self._story.lost(guest.will, guest.kept_s)
            if not guest.is_attached:
                self._story.unknown.add(guest.will)
            del self.guests[number]
        elif operation == wire.WELCOME:
            welcome = wire.unpack(frames[1])
            guest.is_attached, guest.rights = True, welcome["rights"]
            self.attached_again += bool(guest.token)
            guest.token = welcome["token"]
            if guest.is_leaving:
                self._leave(number)
            elif guest.held:
                self._want(number, wire.SUBSCRIBE, sorted(guest.held))
                guest.held.clear()
        elif operation == wire.SUBACK:
            self._answered(guest, wire.unpack(frames[1])[1])
        elif operation == wire.DELIVER:
            for (_, share), batch in zip(wire.unpack(frames[1])[1], frames[2:], strict=True):
                for one in wire.unpack(batch):
                    publisher, _, message = wire.unpack(one[wire.ROW_PAYLOAD])
                    guest.messages.append((share, publisher << 32 | message))

    def _refused_again(self, guest: Guest, code: int) -> None:
        """Judge why a client was not attached again: somebody else has his name, or the router goes down."""
        router = self._node.router
        is_taken = router is not None and self._story.has_come(guest.name, router.shards.incarnation)
        if code != errors.SHUTTING_DOWN and not is_taken:
            self.broken.append(f"{guest.name} is not attached again: {code}")

    def _answered(self, guest: Guest, codes: list[Any]) -> None:
        assert guest.asked is not None
        (operation, texts), guest.asked = guest.asked, None
        for text, code in zip(texts, codes, strict=True):
            if operation == wire.UNSUBSCRIBE:
                guest.held.discard(text)
            elif code is None:
                guest.held.add(text)
