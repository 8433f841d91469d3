"""The keys of issuers as the controller knows them: it tells the router, which has none of its own.

The decisions, without sockets and clocks; `cluster/controller/server.py` reads files, and has addresses asked.

Keys are fetched at the start, then every `refresh_s`, and at once when a token names a key that is not known, but not
more often than every `refresh_min_s`, or unauthenticated peers could have an issuer asked without end. After a failure
it is tried again after `refresh_min_s`, twice as long each time, `refresh_s` at most; the keys that are known stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller.switchboard.effects import FetchKeys
from cluster.controller.switchboard.switchboard import ROUTER, ProcessAsker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from angarium_server.tokens.config import TokenIssuer
    from cluster.admin.arguments import IssuerKeysArguments
    from cluster.controller.switchboard.effects import Effect
    from cluster.controller.switchboard.switchboard import AdminAsker, Asker, Handlers, Switchboard


class _Fetch:
    """What is known of one address."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self.issuer = issuer
        #: When it is asked next, unless something happens before.
        self.due = float("-inf")
        #: When it was asked last; None while that is not yet.
        self.asked_at: float | None = None
        self.is_under_way = False
        #: Failures since the last success.
        self.failures = 0


class Fetches:
    """The addresses of all issuers."""

    def __init__(self, issuers: Sequence[TokenIssuer]) -> None:
        self._of = {one.name: _Fetch(one) for one in issuers if one.jwks_url}

    def take_due(self, now: float) -> list[TokenIssuer]:
        """Give the issuers that are to be asked now; they are under way from here on."""
        due = [fetch for fetch in self._of.values() if fetch.due <= now and not fetch.is_under_way]
        for fetch in due:
            fetch.is_under_way = True
            fetch.asked_at = now
        return [fetch.issuer for fetch in due]

    def want(self, name: str, now: float) -> bool:
        """A token names a key that is not known; tell whether the answer of the address is worth waiting for."""
        fetch = self._of.get(name)
        if fetch is None:
            return False
        if fetch.is_under_way:
            return True
        if fetch.asked_at is not None and now - fetch.asked_at < fetch.issuer.refresh_min_s:
            return False
        fetch.due = now
        return True

    def done(self, name: str, now: float, *, is_good: bool) -> bool:
        """The address has answered, or not; tell whether that is news."""
        fetch = self._of[name]
        fetch.is_under_way = False
        before, issuer = fetch.failures, fetch.issuer
        fetch.failures = 0 if is_good else before + 1
        longest = issuer.refresh_s
        wait_s = longest if is_good else min(longest, issuer.refresh_min_s * 2 ** min(before, 20))
        fetch.due = now + wait_s
        return bool(before) == is_good

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        for fetch in self._of.values():
            assert fetch.failures >= 0
            assert fetch.asked_at is not None or not fetch.is_under_way


class IssuerKeys:
    """What is known of the keys of all issuers."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self._fetches = Fetches(())
        #: Name of the issuer -> its keys, as `angarium_server.tokens.keys` gives them.
        self._keys: dict[str, list[Any]] = {}
        #: Name of the issuer -> who waits for the answer of its address.
        self._askers: dict[str, list[Asker]] = {}
        self._fetched = self._failed = 0
        self.operations: Handlers = {"operators.keys": self._for_login}

    def follow(self, issuers: Sequence[TokenIssuer]) -> None:
        """Have the addresses of these asked from now on."""
        self._fetches = Fetches(issuers)

    def put(self, keys: Mapping[str, list[Any]], faults: Sequence[str], now: float) -> list[Effect]:
        """Keys were read; those with a fault keep the ones that they had."""
        self._keys.update(keys)
        for fault in faults:
            self._tell_fault(fault)
        self.tell(now)
        return self._board.taken()

    def tell(self, now: float) -> None:
        """Tell the router all keys."""
        if self._keys:
            self._board.collect(None, now, {ROUTER: (ROUTER, "token_keys", self._keys)}, lambda _: None)

    def asked(self, identity: bytes, number: int, name: str, now: float) -> list[Effect]:
        """The router has a token of a key that it does not know; it is answered when that may be otherwise."""
        self._wait(name, ProcessAsker(identity, number), now)
        return self._board.taken()

    def _for_login(self, request: IssuerKeysArguments, asker: AdminAsker, now: float) -> None:
        """The management process asks for keys: those that are known, or that are when the address has answered."""
        if request.is_unknown:
            self._wait(request.issuer, asker, now)
        else:
            self._reply(request.issuer, asker)

    def _wait(self, name: str, asker: Asker, now: float) -> None:
        if self._fetches.want(name, now):
            self._askers.setdefault(name, []).append(asker)
        else:
            self._reply(name, asker)
        self._fetch_due(now)

    def _reply(self, name: str, asker: Asker) -> None:
        """Answer: the router has been told of the keys, others get them."""
        self._board.reply(asker, None if isinstance(asker, ProcessAsker) else self._keys.get(name, []))

    def tick(self, now: float) -> list[Effect]:
        """Have addresses asked whose time has come."""
        self._fetch_due(now)
        return self._board.taken()

    def _fetch_due(self, now: float) -> None:
        for issuer in self._fetches.take_due(now):
            self._board.emit(FetchKeys(issuer))

    def fetched(self, name: str, keys: list[Any] | None, fault: str, now: float) -> list[Effect]:
        """An address has answered with keys, or there is something wrong."""
        is_news = self._fetches.done(name, now, is_good=keys is not None)
        if keys is None:
            self._failed += 1
            if is_news:
                self._tell_fault(f"issuer {name!r}: {fault}")
        else:
            self._fetched += 1
            if is_news:
                text = f"the address of issuer {name!r} gives keys again"
                self._board.record_system("info", "SYSTEM_ISSUER_KEYS_USABLE", text)
            self._keys[name] = keys
            self.tell(now)
        for asker in self._askers.pop(name, ()):
            self._reply(name, asker)
        return self._board.taken()

    def stats(self) -> dict[str, int]:
        """Give the totals since the start."""
        return {"issuer_fetches": self._fetched, "issuer_fetches_failed": self._failed}

    def _tell_fault(self, fault: str) -> None:
        text = f"keys of an issuer cannot be used, and those before stay: {fault}"
        self._board.record_system("error", "SYSTEM_ISSUER_KEYS_UNUSABLE", text)
