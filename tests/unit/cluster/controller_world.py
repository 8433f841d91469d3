"""A controller with a store that is a list, and processes that answer when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from cluster.catalog.catalog import Catalog
from cluster.catalog.deletions import Deletions
from cluster.catalog.producers import Producers
from cluster.catalog.registries import Registries
from cluster.catalog.shares import WHOLE, Percents
from cluster.catalog.stages import Stages
from cluster.controller.access.callers import LOCAL, Claim
from cluster.controller.controller import Controller
from cluster.controller.mesh.cluster_view import Identity
from cluster.controller.switchboard import effects as c
from cluster.controller.switchboard.events import EventRing
from cluster.controller.switchboard.switchboard import Switchboard
from cluster.join.tokens import Token, Tokens
from cluster.join.vault import Vaulted

if TYPE_CHECKING:
    from collections.abc import Callable

ASKER = b"asker"
#: The user of the operating system that the node is of.
OWNER = "broker"
#: Of the certificate that the node shows.
FINGERPRINT = bytes(range(32))


class World:
    """The controller, and what became of its effects."""

    def __init__(
        self,
        workers: int = 1,
        node: str = "n",
        events: list[dict[str, Any]] | None = None,
        percents: Percents = WHOLE,
        secret: str = "",
        tokens: list[Token] | None = None,
    ) -> None:
        self.now = 100.0
        #: What the clock of the wall shows.
        self.time = "2031-05-04T10:00:00.000Z"
        self.catalog = Catalog(
            [], lambda password: f"scrypt$16384$8$1$00${password.encode().hex()}", workers=workers
        )
        self.catalog.take(self.catalog.missing_built_ins())
        self.ring = EventRing(100, events or [])
        self.producers = Producers([], 1, 100, 7, percents)
        self.identity = Identity(node, f"id-{node}", "trains", "")
        self.controller = self.start(Stages([], [], self.producers, 86_400))
        self.controller.joining.begin(
            "trains", secret, Tokens(tokens or []), lambda count: bytes([7] * count)
        )
        self.effects: list[c.Effect] = []
        #: Lines of the audit log.
        self.written: list[bytes] = []
        self.store_refuses = False
        #: Whether the store takes a transaction, if it takes any.
        self.takes: Callable[[c.Commit], bool] = lambda _: True
        #: What is wrong with the store.
        self.store_faults: list[str] = []
        #: Why the store cannot be copied; empty: it can.
        self.copy_fails = ""
        #: Why nothing can be signed or kept; None: it can. And the tokens that were kept last.
        self.vault_refuses: errors.AngariumError | None = None
        self.kept_tokens: list[Token] = tokens or []
        self.number = 0

    def start(self, stages: Stages) -> Controller:
        """Give a controller that finds what is stored."""
        registries = Registries(self.catalog, self.producers, stages, Deletions())
        board = Switchboard(self.ring, lambda: self.time)
        return Controller(registries, board, self.identity, {"node": {"name": "n"}}, owner=OWNER)

    def do(self, effects: list[c.Effect]) -> list[c.Effect]:
        seen: list[c.Effect] = []
        for effect in effects:
            if isinstance(effect, c.WriteDown):
                self.written.append(effect.line)
                continue
            seen.append(effect)
            if isinstance(effect, c.Commit):
                seen += self.do(self._commit(effect))
            elif isinstance(effect, c.Judge):
                seen += self.do(self.controller.asked([effect.question]))
            elif isinstance(effect, c.UseVault):
                seen += self.do(self._use_vault(effect))
            elif isinstance(effect, c.CheckStore):
                seen += self.do(self.controller.checked(effect.number, self.store_faults, self.now))
            elif isinstance(effect, c.CopyStore) and self.copy_fails:
                seen += self.do(self.controller.not_copied(effect.number, self.copy_fails))
            elif isinstance(effect, c.CopyStore):
                seen += self.do(self.controller.copied(effect.number, self.now))
        self.controller.validate()
        self.effects += seen
        return seen

    def _use_vault(self, effect: c.UseVault) -> list[c.Effect]:
        if self.vault_refuses is not None:
            return self.controller.joining.vault_refused(effect.number, self.vault_refuses)
        if effect.work.tokens is not None:
            self.kept_tokens = effect.work.tokens
        signed = "" if effect.work.sign is None else f"signed for {', '.join(effect.work.sign.hosts)}"
        return self.controller.joining.vault_used(
            effect.number, Vaulted(FINGERPRINT, "", "10.0.0.9", "ca", signed)
        )

    def _commit(self, effect: c.Commit) -> list[c.Effect]:
        if self.store_refuses or not self.takes(effect):
            return self.controller.not_committed(effect.number, errors.INTERNAL, "full")
        return self.controller.committed(effect.number, self.now)

    def hello(self, role: str, index: int = 0, incarnation: int = 7) -> list[c.Effect]:
        identity = f"{role}-{index}-{incarnation}".encode()
        return self.do(self.controller.hello(identity, (role, index), incarnation, 1000 + index, self.now))

    def call(self, operation: str, **arguments: Any) -> list[c.Effect]:
        return self.call_as(LOCAL, operation, **arguments)

    def call_as(self, claim: Claim, operation: str, /, **arguments: Any) -> list[c.Effect]:
        """Have somebody call an operation."""
        self.number += 1
        return self.do(self.controller.admin(ASKER, self.number, operation, arguments, self.now, claim))

    def question(self, operation: str, **arguments: Any) -> list[c.Effect]:
        """Have the router ask something."""
        return self.questions((operation, arguments))

    def questions(self, *asked: tuple[str, Any]) -> list[c.Effect]:
        """Have the router ask several things at the same time."""
        questions = []
        for operation, arguments in asked:
            self.number += 1
            questions.append(c.Asked(b"router-0-7", self.number, operation, arguments))
        return self.do(self.controller.asked(questions))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Call an operation that is answered at once, and give its value."""
        return self.ask_as(LOCAL, operation, **arguments)

    def ask_as(self, claim: Claim, operation: str, /, **arguments: Any) -> Any:
        """Have somebody call it, and give its value."""
        seen = self.call_as(claim, operation, **arguments)
        replies = [effect for effect in seen if isinstance(effect, c.Reply)]
        assert len(replies) == 1, replies
        assert replies[0].number == self.number
        if not replies[0].ok:
            raise errors.error_for(*replies[0].value)
        return replies[0].value

    def answer(self, seen: list[c.Effect], *values: Any) -> list[c.Effect]:
        """Answer the requests among some effects, in order."""
        requests = [effect for effect in seen if isinstance(effect, c.Request)]
        assert len(requests) == len(values), requests
        made: list[c.Effect] = []
        for request, value in zip(requests, values, strict=True):
            made += self.do(self.controller.answered(request.number, value))
        return made

    def wait(self, seconds: float) -> list[c.Effect]:
        self.now += seconds
        return self.do(self.controller.tick(self.now))

    def news(self, workers: int | None = None, **states: str) -> None:
        """Have the supervisor describe the node; `worker_2="ready"` is the worker of that index.

        Args:
            workers: how many are wanted, as the supervisor knows; None: it does not say.
            states: by process.
        """
        rows = [
            {
                "role": role.partition("_")[0],
                "index": int(role.partition("_")[2] or 0),
                "incarnation": 7,
                "pid": 0 if state == "restarting" else 1,
                "state": state,
            }
            for role, state in states.items()
        ]
        node: dict[str, Any] = {"node": "n", "url": "u", "uptime_s": 1.0, "processes": rows, "events": []}
        if workers is not None:
            node["workers"] = workers
        self.do(self.controller.node_news(node, self.now))


def requests(seen: list[c.Effect]) -> list[tuple[str, Any]]:
    return [(effect.operation, effect.arguments) for effect in seen if isinstance(effect, c.Request)]


def replies(seen: list[c.Effect]) -> list[Any]:
    return [effect.value for effect in seen if isinstance(effect, c.Reply)]


def answers(seen: list[c.Effect]) -> list[tuple[bool, Any]]:
    """Give what processes were answered."""
    return [(effect.ok, effect.value) for effect in seen if isinstance(effect, c.Answer)]
