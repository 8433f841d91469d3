"""What endpoints, Message VPNs and the node hold, and what they may: the accounts that admission asks.

Limits are never exceeded, not by one message (design section 7, 3). So an account counts what homes have reported and
what is on its way to them; a report covers exactly what the home had accepted. Homes report lanes; sizes are spool
sizes: payload, properties and `wire.SPOOL_OVERHEAD_BYTES` for each message. A message in two endpoints counts twice.
A last-value queue takes no quota (facts section 5), and is in the accounts of its endpoint only.

A spool file is an accounting number for `wire.SPOOL_FILE_BYTES` of messages of one home (R181): it takes messages until
it holds so much. How many files will be used is known as an upper bound only, so the limit holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router.admission.directory import Attributes, Vpn
    from router.config import SpoolLimits
    from router.guaranteed.endpoints import Endpoint, Endpoints, LaneUsage

#: One MB of a quota.
BYTES_PER_MB: Final = 1_000_000


class Reason(NamedTuple):
    """Why a message was not spooled."""

    code: int
    #: Counter of the router and of the session.
    discard: str
    #: Counter of the endpoint.
    counter: str
    #: What the publisher is told besides the code.
    detail: str


NODE_QUOTA: Final = Reason(
    errors.SPOOL_OVER_QUOTA, "discard.spool-usage-exceeded", "node_spool_usage_exceeded", "quota of the node"
)
VPN_QUOTA: Final = Reason(
    errors.SPOOL_OVER_QUOTA,
    "discard.vpn-spool-usage-exceeded",
    "vpn_spool_usage_exceeded",
    "quota of the Message VPN",
)
ENDPOINT_QUOTA: Final = Reason(
    errors.SPOOL_OVER_QUOTA,
    "discard.endpoint-usage-exceeded",
    "spool_usage_exceeded",
    "quota of the endpoint",
)
TOO_LARGE: Final = Reason(
    errors.MESSAGE_TOO_LARGE,
    "discard.max-message-size-exceeded",
    "max_message_size_exceeded",
    "max_message_bytes of the endpoint",
)
SHUT_DOWN: Final = Reason(errors.ENDPOINT_SHUTDOWN, "discard.endpoint-disabled", "spool_shutdown_discard", "")
LOW_PRIORITY: Final = Reason(
    errors.LOW_PRIORITY_CONGESTION,
    "discard.low-priority-msg-congestion",
    "low_priority_msg_congestion_discard",
    "",
)
FILES: Final = Reason(
    errors.SPOOL_FILES_EXCEEDED, "discard.spool-file-limit-exceeded", "spool_files_exceeded", ""
)


#: There is no room for copies of direct messages, whoever they are for; it counts like the quota.
COPIES: Final = NODE_QUOTA._replace(detail="direct messages that wait for a disk")


class Pool:
    """The account of the node, or of one Message VPN."""

    __slots__ = ("_attributes", "_limit_bytes", "bytes", "endpoints", "vpn")

    def __init__(self, limit_bytes: int, vpn: Vpn | None = None) -> None:
        self.vpn = vpn
        #: Held by endpoints that take quota, with what is on its way.
        self.bytes = 0
        #: How many there are in the Message VPN.
        self.endpoints = 0
        self._limit_bytes = limit_bytes
        self._attributes: Attributes | None = None

    @property
    def limit_bytes(self) -> int:
        """Give what it may hold."""
        if self.vpn is not None and self.vpn.attributes is not self._attributes:
            self._attributes = self.vpn.attributes
            self._limit_bytes = int(self._attributes["max_spool_usage_mb"]) * BYTES_PER_MB
        return self._limit_bytes


class Account:
    """The account of one endpoint, with what its attributes say in the form in which it is asked."""

    __slots__ = (
        "attributes",
        "bytes",
        "endpoint",
        "ingress_enabled",
        "is_gone",
        "low_priority_limit",
        "max_message_bytes",
        "messages",
        "quota_bytes",
        "reject_to_sender",
        "takes_quota",
        "vpn",
    )

    def __init__(self, endpoint: Endpoint, vpn: Pool) -> None:
        self.endpoint = endpoint
        #: What was read last; another object if they changed since.
        self.attributes: Attributes = {}
        self.vpn = vpn
        #: Held by all its lanes, with what is on its way.
        self.messages = endpoint.messages
        self.bytes = endpoint.bytes
        #: True once it was deleted: what is still on its way counts nowhere.
        self.is_gone = False
        #: False for a last-value queue.
        self.takes_quota = False
        self.quota_bytes = 0
        self.max_message_bytes = 0
        self.ingress_enabled = True
        #: Messages above which it takes none of low priority; None: it takes them always.
        self.low_priority_limit: int | None = None
        #: `always`, `when-enabled` or `never`: whether a publisher hears that it could not take a message.
        self.reject_to_sender = "always"

    def read(self, attributes: Attributes) -> None:
        """Take the limits from the attributes."""
        self.attributes = attributes
        self.takes_quota = int(attributes["max_spool_usage_mb"]) > 0
        self.quota_bytes = int(attributes["max_spool_usage_mb"]) * BYTES_PER_MB
        self.max_message_bytes = int(attributes["max_message_bytes"])
        self.ingress_enabled = bool(attributes["ingress_enabled"])
        rejects = bool(attributes["reject_low_priority"])
        self.low_priority_limit = int(attributes["reject_low_priority_limit"]) if rejects else None
        self.reject_to_sender = str(attributes["reject_to_sender"])

    def refusal(self, messages: int, size: int, largest: int, low_priority: int) -> Reason | None:
        """Say why it cannot take messages in one go, by the order of seed 004; None if it can.

        Node and Message VPN were asked before. With several messages it may be that some fit: they are asked for
        one by one then.

        Args:
            messages: how many.
            size: their spool bytes.
            largest: payload and properties of the largest one.
            low_priority: how many of them are of low priority.
        """
        if self.takes_quota and self.bytes + size > self.quota_bytes:
            return ENDPOINT_QUOTA
        if largest > self.max_message_bytes:
            return TOO_LARGE
        if not self.ingress_enabled:
            return SHUT_DOWN
        limit = self.low_priority_limit
        if limit is not None and low_priority and self.messages + messages > limit:
            return LOW_PRIORITY
        return None

    def takes_never(self, size: int, largest: int, low_priority: int) -> bool:
        """Tell whether it has no room for a message however empty it is; the arguments are those of `refusal`."""
        if self.takes_quota and size > self.quota_bytes:
            return True
        limit = self.low_priority_limit
        return largest > self.max_message_bytes or (limit is not None and low_priority > 0 and limit < 1)

    def tells_sender(self, reason: Reason) -> bool:
        """Tell whether the publisher hears of it, so that the message goes nowhere (facts section 10)."""
        if reason is FILES:  # all publishers do (R184)
            return True
        if self.reject_to_sender == "when-enabled":
            return reason is not SHUT_DOWN
        return self.reject_to_sender == "always"


class HomeUsage:
    """What one home has written and holds, as it reported last, and what is on its way to it."""

    __slots__ = ("delivered_unacked", "disk_bytes", "files", "inflight_bytes", "open_file_bytes")

    def __init__(self) -> None:
        #: With the open one.
        self.files = 0
        #: In the open file; 0: there is none.
        self.open_file_bytes = 0
        self.disk_bytes = 0
        self.delivered_unacked = 0
        #: Spool bytes in STOREs that no report covers; a message for several lanes once.
        self.inflight_bytes = 0

    def report(self, spool: list[int]) -> None:
        """Take `[files, open_file_bytes, disk_bytes, delivered_unacked]`."""
        self.files, self.open_file_bytes, self.disk_bytes, self.delivered_unacked = spool[:4]

    def files_with(self, more_bytes: int) -> int:
        """Give how many files it uses at most with so many bytes more."""
        total = self.inflight_bytes + more_bytes
        if not total:
            return self.files
        is_open = self.open_file_bytes > 0
        return self.files - is_open - (-(self.open_file_bytes + total) // wire.SPOOL_FILE_BYTES)


class Usage:
    """All accounts; a listener of `Endpoints`."""

    def __init__(self, limits: SpoolLimits, endpoints: Endpoints) -> None:
        self.limits = limits
        self._endpoints = endpoints
        self.node = Pool(limits.max_usage_mb * BYTES_PER_MB)
        #: VPN number -> its account; those with endpoints.
        self.vpns: dict[int, Pool] = {}
        #: Endpoint id -> its account.
        self.accounts: dict[int, Account] = {}
        #: By index of the worker.
        self.homes: dict[int, HomeUsage] = {}
        #: Counts what made room: something was consumed, or a limit changed.
        self.freed = 0
        #: Hears of every message that an endpoint did not take, with the reason.
        self.on_refused: Callable[[Account, Reason], None] = _ignore

    def account(self, endpoint: Endpoint) -> Account:
        """Give the account of an endpoint that exists, by its attributes of now."""
        account = self.accounts.get(endpoint.id)
        if account is None or account.attributes is not endpoint.attributes:
            return self._read(endpoint, account)
        return account

    def _read(self, endpoint: Endpoint, account: Account | None) -> Account:
        if account is None:
            pool = self.vpns.get(endpoint.vpn.id)
            if pool is None:
                pool = self.vpns[endpoint.vpn.id] = Pool(0, endpoint.vpn)
            account = self.accounts[endpoint.id] = Account(endpoint, pool)
            pool.endpoints += 1
        self._uncount(account)
        account.read(endpoint.attributes)
        self._count(account)
        return account

    def home(self, index: int) -> HomeUsage:
        """Give the account of a home."""
        found = self.homes.get(index)
        if found is None:
            found = self.homes[index] = HomeUsage()
        return found

    # -- endpoints -------------------------------------------------------------------------------------------

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """What it held counts no more."""
        self.freed += 1
        account = self.accounts.pop(endpoint.id, None)
        if account is None:
            return
        self._uncount(account)
        account.is_gone = True
        account.vpn.endpoints -= 1
        if not account.vpn.endpoints:
            del self.vpns[endpoint.vpn.id]

    def _count(self, account: Account) -> None:
        if account.takes_quota:
            account.vpn.bytes += account.bytes
            self.node.bytes += account.bytes

    def _uncount(self, account: Account) -> None:
        if account.takes_quota:
            account.vpn.bytes -= account.bytes
            self.node.bytes -= account.bytes

    def refused(self, account: Account, reason: Reason) -> None:
        """An endpoint did not take a message."""
        account.endpoint.count(reason.counter)
        self.on_refused(account, reason)

    # -- on their way ----------------------------------------------------------------------------------------

    def charge(self, account: Account, lane: LaneUsage, messages: int, size: int) -> None:
        """Count messages that were admitted."""
        lane.inflight_messages += messages
        lane.inflight_bytes += size
        self._add(account, messages, size)

    def uncharge(self, account: Account, lane: LaneUsage, messages: int, size: int) -> None:
        """A report covers them now."""
        lane.inflight_messages -= messages
        lane.inflight_bytes -= size
        self._add(account, -messages, -size)

    def uncharge_moved(self, lane: LaneUsage, messages: int, size: int) -> None:
        """The lane is at another home by now, whose report will tell them: count them as told until then."""
        lane.inflight_messages -= messages
        lane.inflight_bytes -= size
        lane.messages += messages
        lane.bytes += size

    def _add(self, account: Account, messages: int, size: int) -> None:
        if account.is_gone:
            return
        account.messages += messages
        account.bytes += size
        if account.takes_quota:
            account.vpn.bytes += size
            self.node.bytes += size

    # -- reports ---------------------------------------------------------------------------------------------

    def report(self, index: int, totals: list[list[int]], spool: list[int]) -> list[Account]:
        """Take what a home reports; gives the accounts that changed.

        Args:
            index: the home.
            totals: `[[lane_id, messages, bytes, oldest_stored_ms, unacked], ...]`, absolute.
            spool: `[files, open_file_bytes, disk_bytes, delivered_unacked]`.
        """
        changed: dict[Account, None] = {}
        for lane_id, messages, size, *_ in totals:
            found = self._endpoints.lane(lane_id)
            if found is None or found[1].home != index:
                continue
            endpoint, lane = found
            account = self.account(endpoint)
            self.freed += size < lane.bytes or messages < lane.messages
            self._add(account, messages - lane.messages, size - lane.bytes)
            changed[account] = None
        self._endpoints.report(index, totals)
        home = self.home(index)
        self.freed += spool[0] < home.files
        home.report(spool)
        return list(changed)

    # -- questions -------------------------------------------------------------------------------------------

    def files_fit(self, more: Iterable[tuple[int, int]]) -> bool:
        """Tell whether the limit of spool files holds with so many bytes more at some homes: (home, bytes)."""
        total = sum(home.files_with(0) for home in self.homes.values())
        for index, size in more:
            home = self.home(index)
            total += home.files_with(size) - home.files_with(0)
        return total <= self.limits.max_files

    @property
    def files(self) -> int:
        """Give the spool files in use, at most."""
        return sum(home.files_with(0) for home in self.homes.values())

    @property
    def delivered_unacked(self) -> int:
        """Give the messages that were delivered and not settled."""
        return sum(home.delivered_unacked for home in self.homes.values())

    def stats(self) -> dict[str, Any]:
        """Give the figures of the node's spool; sizes in bytes."""
        return {
            "messages": sum(account.messages for account in self.accounts.values()),
            "usage_bytes": self.node.bytes,
            "quota_bytes": self.node.limit_bytes,
            "disk_bytes": sum(home.disk_bytes for home in self.homes.values()),
            "files": self.files,
            "files_max": self.limits.max_files,
            "delivered_unacked": self.delivered_unacked,
            "delivered_unacked_max": self.limits.max_delivered_unacked,
            "endpoints": len(self._endpoints),
        }

    def validate(self) -> None:
        """Check that the sums are sums."""
        pools = dict.fromkeys(self.vpns.values(), 0)
        for account in self.accounts.values():
            assert account.messages == account.endpoint.messages, account.endpoint.name
            assert account.bytes == account.endpoint.bytes, account.endpoint.name
            if account.takes_quota:
                pools[account.vpn] += account.bytes
        assert all(pool.bytes == size for pool, size in pools.items())
        assert self.node.bytes == sum(pools.values())
        assert all(home.inflight_bytes >= 0 for home in self.homes.values())


def _ignore(_account: Account, _reason: Reason) -> None:
    """Nobody wants to know."""
