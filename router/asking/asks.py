"""Questions of the router to the controller, and what follows from the answers.

The controller owns everything that is durable besides messages: endpoints, the names of producers. The router judges
rights, asks (an effect), and goes on when the answer comes. `angarium_server.process.Process.ask` bounds how long an
answer is waited for.

A change costs the controller a write to disk, so clients can ask faster than it answers. Only a few questions are with
it at a time; so one of an operator, which goes there directly, never has more than these before it. The others wait
here, in a queue for each session. Message VPNs take turns, in each its usernames, and their sessions:

    alice, session 1: a b c d      the controller gets   a  x  e  b  f  c  d
    alice, session 2: e f          so x of bob waits for one question, not for six
    bob, session 3:   x

A session has no more questions than requests (`REQUESTS_MAX`), a username `PER_USERNAME_MAX`, a Message VPN
`PER_VPN_MAX`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.errors import AngariumError, error_for
from router.ground.effects import AskController

if TYPE_CHECKING:
    from router.ground.ground import Outbox
    from router.sessions.session import Session

#: Takes (ok, value, now); a refusal has the value [code, detail].
Answered = Callable[[bool, Any, float], None]

#: Questions that are with the controller: enough that it never waits for us, a few milliseconds of its work.
AT_CONTROLLER_MAX: Final = 16
#: Questions of the sessions of one username, and those of the router itself, that wait here.
PER_USERNAME_MAX: Final = 1_024
#: The same of one Message VPN: who comes by a token may have any of many usernames.
PER_VPN_MAX: Final = 8 * PER_USERNAME_MAX
#: How long a question waits here: as long as the controller's answer is waited for afterwards.
WAIT_S: Final = 8.0

#: (Message VPN, username); the router itself has none.
_User = tuple[str, str]
_ROUTER: Final[_User] = ("", "")


class _Question(NamedTuple):
    operation: str
    arguments: dict[str, Any]
    done: Answered
    asked_at: float


#: Session number -> its questions.
_Sessions = OrderedDict[int, deque[_Question]]


class Asks:
    """Questions without an answer."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._next_ticket = 1
        #: Those that are with the controller, at most `AT_CONTROLLER_MAX`.
        self._waiting: dict[int, Answered] = {}
        #: Message VPN -> username -> session number -> its questions, all in the order of their turns; none is empty,
        #: and there are none at all while the controller has room.
        self._queued: OrderedDict[str, OrderedDict[str, _Sessions]] = OrderedDict()
        #: How many of each username, and of each Message VPN; no zeros.
        self._counts: Counter[_User] = Counter()
        self._vpn_counts: Counter[str] = Counter()
        #: The time as it was told last.
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._waiting) + self._vpn_counts.total()

    def ask(
        self, operation: str, arguments: dict[str, Any], done: Answered, session: Session | None = None
    ) -> None:
        """Ask the controller; `done` is called once, with 50321 if it does not answer.

        Args:
            operation: what is asked.
            arguments: its arguments.
            done: what follows; before this returns with 42902 if too many of its username or Message VPN wait.
            session: the client for which it is asked; None: the router needs it.
        """
        question = _Question(operation, arguments, done, self._now)
        if len(self._waiting) < AT_CONTROLLER_MAX:
            self._send(question)
            return
        user, number = _ROUTER, 0
        if session is not None:
            user, number = (session.vpn.name, session.username), session.number
        detail = self._too_many(*user)
        if detail:
            done(False, [errors.CONTROL_RATE_EXCEEDED, detail], self._now)  # noqa: FBT003 - the form of an answer
            return
        vpn, username = user
        self._counts[user] += 1
        self._vpn_counts[vpn] += 1
        sessions = self._queued.setdefault(vpn, OrderedDict()).setdefault(username, OrderedDict())
        sessions.setdefault(number, deque()).append(question)

    def _too_many(self, vpn: str, username: str) -> str:
        """Say of whom too many questions wait already; nothing if there is room."""
        if self._counts[vpn, username] >= PER_USERNAME_MAX:
            return f"{PER_USERNAME_MAX} requests of username {username} wait"
        if self._vpn_counts[vpn] >= PER_VPN_MAX:
            return f"{PER_VPN_MAX} requests of Message VPN {vpn} wait"
        return ""

    def answered(self, ticket: int, ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - part of the answer
        """The controller answered, or will not."""
        self._now = now
        done = self._waiting.pop(ticket, None)
        if done is not None:
            done(ok, value, now)
        while self._queued and len(self._waiting) < AT_CONTROLLER_MAX:
            self._send(self._take_next())

    def tick(self, now: float) -> None:
        """Give up what waited here for too long: the controller does not keep up, or is away."""
        self._now = now
        overdue = [
            (vpn, username, number)
            for vpn, usernames in self._queued.items()
            for username, sessions in usernames.items()
            for number, questions in sessions.items()
            if now - questions[0].asked_at > WAIT_S
        ]
        for vpn, username, number in overdue:
            questions = self._queued[vpn][username][number]
            while questions and now - questions[0].asked_at > WAIT_S:
                self._give_up(self._take(vpn, username, number), now)

    def _give_up(self, question: _Question, now: float) -> None:
        value = [errors.CONTROLLER_UNAVAILABLE, f"it had no time for this within {WAIT_S:g} s"]
        question.done(False, value, now)  # noqa: FBT003 - the form of an answer

    def _send(self, question: _Question) -> None:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = question.done
        self._outbox.effects.append(AskController(ticket, question.operation, question.arguments))

    def _take_next(self) -> _Question:
        """Give the next question; its Message VPN, username and session are last then."""
        vpn = next(iter(self._queued))
        usernames = self._queued[vpn]
        username = next(iter(usernames))
        sessions = usernames[username]
        number = next(iter(sessions))
        self._queued.move_to_end(vpn)
        usernames.move_to_end(username)
        sessions.move_to_end(number)
        return self._take(vpn, username, number)

    def _take(self, vpn: str, username: str, number: int) -> _Question:
        usernames = self._queued[vpn]
        sessions = usernames[username]
        question = sessions[number].popleft()
        self._counts[vpn, username] -= 1
        self._vpn_counts[vpn] -= 1
        if not sessions[number]:
            del sessions[number]
        if not sessions:
            del usernames[username], self._counts[vpn, username]
        if not usernames:
            del self._queued[vpn], self._vpn_counts[vpn]
        return question

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert len(self._waiting) <= AT_CONTROLLER_MAX
        assert not self._queued or len(self._waiting) == AT_CONTROLLER_MAX, "the controller has room"
        counts: Counter[_User] = Counter()
        for vpn, usernames in self._queued.items():
            for username, sessions in usernames.items():
                assert all(sessions.values())
                counts[vpn, username] = sum(map(len, sessions.values()))
            assert self._vpn_counts[vpn] == sum(counts[vpn, username] for username in usernames)
        assert counts == self._counts
        assert self._vpn_counts.keys() == self._queued.keys()


def refusal(value: Any) -> AngariumError:
    """Give the error of a refused question."""
    try:
        code, detail = value
        return error_for(int(code), str(detail))
    except (TypeError, ValueError):
        return error_for(errors.INTERNAL, "the controller gave no reason")
