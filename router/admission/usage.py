"""What endpoints, Message VPNs and the node hold, and what they may: the accounts that admission asks.

Limits are never exceeded, not by one message. So an account counts what homes have reported and
what is on its way to them; a report covers exactly what the home had accepted. Homes report lanes; sizes are spool
sizes: payload, properties and `wire.SPOOL_OVERHEAD_BYTES` for each message. A message in two endpoints counts twice.
A last-value queue takes no quota, and is in the accounts of its endpoint only.

While a lane goes from one home to another (`worker scale`) the old home may hold messages that the new one does not
know yet. They count as the old one told them until the figures of the new one are complete. A router that was not there
when the lane got another home does not know them either: nothing is admitted until somebody has counted them.

**Spool files** are accounting numbers for about 8 MB of messages each, which the router gives (R181, R182).
No file of a disk is meant. What a STORE brings to a home lies in one file, the one that is open there; when that got
`wire.SPOOL_FILE_BYTES` or more, the next STORE opens another one. A file is used while some home has a message in it,
or a STORE for it is on its way; homes keep the number with the messages and tell which ones they use.

Whatever is done with messages later, they keep their file: packed again, at another home, in another endpoint. So one
file may be used by several homes and is one nevertheless, and only new messages make more of them. `fit` is asked
before these are admitted, so the limit is never exceeded, also when processes die or restart.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire
from router.admission.transits import Transits
from router.ground.ground import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from angarium_server.frames.homes import LaneTotals, Run, SpoolFigures
    from router.ground.config import SpoolLimits
    from router.guaranteed.endpoints import Endpoint, Endpoints, LaneUsage
    from router.sessions.directory import Attributes, Vpn

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
#: Nobody records such a refusal before there is room again: it goes with what the producer stores next (`memory`).
NO_ROOM: Final = Reason(errors.DISK_FULL, "discard.disk-full", "disk_full_discard", "the disk of a worker")

#: There is no room for copies of direct messages, in any endpoint; it counts like the quota.
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
        self.takes_quota = takes_quota(attributes)
        self.quota_bytes = int(attributes["max_spool_usage_mb"]) * BYTES_PER_MB
        self.max_message_bytes = int(attributes["max_message_bytes"])
        self.ingress_enabled = bool(attributes["ingress_enabled"])
        rejects = bool(attributes["reject_low_priority"])
        self.low_priority_limit = int(attributes["reject_low_priority_limit"]) if rejects else None
        self.reject_to_sender = str(attributes["reject_to_sender"])

    def refusal(self, messages: int, size: int, largest: int, low_priority: int) -> Reason | None:
        """Say why it cannot take messages in one go, in the order of R171 to R176; None if it can.

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
        """Tell whether the publisher hears of it, so that the message goes nowhere (R114)."""
        if reason is FILES or reason is NO_ROOM:  # all publishers do (R184)
            return True
        if self.reject_to_sender == "when-enabled":
            return reason is not SHUT_DOWN
        return self.reject_to_sender == "always"


class HomeUsage:
    """What one home holds, as it reported last."""

    __slots__ = (
        "allowance",
        "delivered_unacked",
        "disk_bytes",
        "files",
        "lanes_importing",
        "lanes_kept_aside",
        "room_bytes",
        "staged_bytes",
        "staged_messages",
        "wanted",
    )

    def __init__(self) -> None:
        #: Spool files with messages that it has accepted.
        self.files: dict[int, None] = {}
        self.disk_bytes = 0
        self.delivered_unacked = 0
        #: Lanes that it takes over from other homes and does not have yet.
        self.lanes_importing = 0
        #: Lanes that it has and that no object claims.
        self.lanes_kept_aside = 0
        #: Of messages that it has and that belong to a stage.
        self.staged_messages = self.staged_bytes = 0
        #: What may be on its way to it for its disk; 0: nothing new. None: it did not tell.
        self.room_bytes: int | None = None
        #: What it may have delivered and not settled, and what it would have; 0: no more (`allowances`).
        self.allowance = self.wanted = 0

    def report(self, spool: SpoolFigures) -> None:
        """Take what it tells of itself as a whole."""
        self.disk_bytes, self.delivered_unacked = spool.disk_bytes, spool.unacked
        self.lanes_importing, self.lanes_kept_aside = spool.importing, spool.aside
        self.staged_messages, self.staged_bytes = spool.staged_messages, spool.staged_bytes
        self.allowance, self.wanted = spool.allowance, spool.wanted
        self.room_bytes = spool.room_bytes


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
        self.files = SpoolFiles(limits.max_files)
        #: What is in two endpoints for a moment, and counts once.
        self.transits = Transits()
        #: By index of the worker.
        self.homes: dict[int, HomeUsage] = {}
        #: Homes whose disk has no room for anything new.
        self.full_homes: dict[int, None] = {}
        #: Files of homes that left, while others take over what is in them; they count as users of these.
        self._left: list[int] = []
        #: Lanes whose figures nobody knows: nothing is admitted meanwhile.
        self.unknown: dict[LaneUsage, None] = {}
        #: Counts what made room: something was consumed, or a limit changed.
        self.freed = 0
        #: Hears of every message that an endpoint did not take, with the reason.
        self.on_refused: Callable[[Account, Reason], None] = nothing

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
        if account.takes_quota != takes_quota(endpoint.attributes):
            self.transits.forget(account)
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
        for lane in endpoint.all_lanes():
            self.unknown.pop(lane, None)
            self.transits.over(lane.lane_id)
        account = self.accounts.pop(endpoint.id, None)
        if account is None:
            return
        self.transits.forget(account)
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

    def uncharge_elsewhere(self, account: Account, lane: LaneUsage, messages: int, size: int) -> None:
        """The lane has another home by now: it has them when it has taken over what the old one holds."""
        if lane.is_complete:
            self.uncharge(account, lane, messages, size)
            return
        lane.inflight_messages -= messages
        lane.inflight_bytes -= size
        lane.left_messages += messages
        lane.left_bytes += size

    def _add(self, account: Account, messages: int, size: int) -> None:
        if account.is_gone:
            return
        account.messages += messages
        account.bytes += size
        if account.takes_quota:
            account.vpn.bytes += size
            self.node.bytes += size

    def shared_pools(self, source: Account, target: Account) -> list[Pool]:
        """Give the sums that two endpoints are in, so that what goes from one to the other adds nothing to them."""
        if not (source.takes_quota and target.takes_quota):
            return []
        return [self.node, source.vpn] if source.vpn is target.vpn else [self.node]

    # -- reports ---------------------------------------------------------------------------------------------

    def home_began(self, totals: Sequence[LaneTotals]) -> None:
        """Take note that a home that is new to this router counts its traffic from these figures on."""
        for entry in totals:
            if found := self._endpoints.lane(entry.lane):
                found[1].traffic.go_on(entry.traffic)

    def report(
        self, index: int, totals: Sequence[LaneTotals], spool: SpoolFigures, now: float
    ) -> dict[Account, None]:
        """Take what a home reports of lanes, and of itself; gives the accounts that changed."""
        before: dict[LaneUsage, tuple[Account, int, int, bool]] = {}
        for entry in totals:
            found = self._endpoints.lane(entry.lane)
            if found is not None and found[1].home == index:
                endpoint, lane = found
                before[lane] = self.account(endpoint), lane.held_messages, lane.held_bytes, lane.is_complete
                lane.report(entry, now)
        is_completed = False
        for lane, (account, messages, size, was_complete) in before.items():
            self.freed += lane.held_bytes < size or lane.held_messages < messages
            self._add(account, lane.held_messages - messages, lane.held_bytes - size)
            if not lane.is_known:
                self.unknown[lane] = None
            else:
                self.unknown.pop(lane, None)
            is_completed |= lane.is_complete and not was_complete
        if self.transits.by_lane:
            for entry in totals:
                found = self._endpoints.lane(entry.lane)
                if found is not None and found[1] in before:
                    self.transits.told(entry.lane, entry.moving)
        self.files_freed(index, numbers_of(spool.freed))
        self.home(index).report(spool)
        if self.home(index).room_bytes == 0:
            self.full_homes[index] = None
        elif index in self.full_homes:
            del self.full_homes[index]
            self.freed += 1
        if is_completed:
            self._release_left()
        return dict.fromkeys([account for account, *_ in before.values()])

    # -- spool files -----------------------------------------------------------------------------------------

    def files_used(self, index: int, files: Iterable[int]) -> None:
        """A home has messages in these files."""
        known = self.home(index).files
        for file in files:
            if file not in known:
                known[file] = None
                self.files.join(file)

    def files_freed(self, index: int, files: Iterable[int]) -> None:
        """A home has no messages in these files any more."""
        known, before = self.home(index).files, len(self.files)
        for file in files:
            if file in known:
                del known[file]
                self.files.leave(file)
        self.freed += len(self.files) < before

    def home_left(self, index: int) -> None:
        """A worker is no home any more: what it holds is taken over by others."""
        self.full_homes.pop(index, None)
        self._left += self.homes.pop(index, HomeUsage()).files
        self.files.close(index)
        self._release_left()

    def file_left(self, file: int) -> None:
        """A STORE was on its way to a home that is no more, which may have stored it."""
        self._left.append(file)

    def _release_left(self) -> None:
        """When all is taken over, the homes that did it tell the files."""
        if all(lane.is_complete and lane.home in self.homes for lane in self._endpoints.lanes()):
            for file in self._left:
                self.files.leave(file)
            self._left = []

    # -- questions -------------------------------------------------------------------------------------------

    @property
    def all_at_home(self) -> bool:
        """Tell whether every lane is where it belongs, with everything that it has."""
        return not any(home.lanes_importing for home in self.homes.values()) and all(
            lane.is_reported and lane.is_complete and lane.home in self.homes
            for lane in self._endpoints.lanes()
        )

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
            "files": len(self.files),
            "files_max": self.limits.max_files,
            "delivered_unacked": self.delivered_unacked,
            "delivered_unacked_max": self.limits.max_delivered_unacked,
            "homes_full": sorted(self.full_homes),
            "staged_messages": sum(home.staged_messages for home in self.homes.values()),
            "staged_bytes": sum(home.staged_bytes for home in self.homes.values()),
            "endpoints": len(self._endpoints),
            "lanes_kept_aside": sum(home.lanes_kept_aside for home in self.homes.values()),
        }

    def validate(self) -> None:
        """Check that the sums are sums."""
        pools = dict.fromkeys(self.vpns.values(), 0)
        for account in self.accounts.values():
            off = [transit.off_account(account) for transit in self.transits]
            assert account.messages == account.endpoint.messages - sum(one.messages for one in off), account
            assert account.bytes == account.endpoint.bytes - sum(one.bytes for one in off), account
            if account.takes_quota:
                pools[account.vpn] += account.endpoint.bytes
        for pool, size in [*pools.items(), (self.node, sum(pools.values()))]:
            assert pool.bytes == size - sum(transit.off_pool(pool) for transit in self.transits)
        self.files.validate()
        lanes = list(self._endpoints.lanes())
        assert [lane for lane in self.unknown if lane not in lanes] == []
        assert all(lane.is_known or lane in self.unknown for lane in lanes)

    def validate_files(self, under_way: list[int]) -> None:
        """Check who uses spool files, with the STOREs on their way."""
        users = [file for home in self.homes.values() for file in home.files] + self._left + under_way
        assert self.files.users() == Counter(users)


def takes_quota(attributes: Attributes) -> bool:
    """Tell whether an endpoint takes quota: a last-value queue does not."""
    return int(attributes["max_spool_usage_mb"]) > 0


def numbers_of(runs: Iterable[Run]) -> list[int]:
    """Give the numbers of runs. Example: (3, 2), (7, 1) are 3, 4, 7."""
    return [number for first, count in runs for number in range(first, first + count)]


class SpoolFiles:
    """The spool files of the node."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: File -> homes that have messages in it and STOREs for it that are on their way; exactly the used ones.
        self._users: dict[int, int] = {}
        #: Home -> the file that it fills, which is used, and the bytes that it got.
        self._open: dict[int, tuple[int, int]] = {}
        #: No file had a higher number.
        self._newest = 0

    def __len__(self) -> int:
        return len(self._users)

    def __contains__(self, file: int) -> bool:
        return file in self._users

    def fit(self, homes: Iterable[int]) -> bool:
        """Tell whether each of some homes can be given a STORE."""
        opened = self._open
        return len(self._users) + sum([home not in opened for home in homes]) <= self.limit

    def fits(self, file: int) -> bool:
        """Tell whether messages can go on in a file."""
        return file in self._users or len(self._users) < self.limit

    def choose(self, home: int, size: int) -> int:
        """Give the file for so many bytes of new messages; they are to `join` it at once."""
        file, held = self._open.get(home, (0, 0))
        if not file:
            file = self._newest = self._newest + 1
        if held + size < wire.SPOOL_FILE_BYTES:
            self._open[home] = file, held + size
        else:
            self._open.pop(home, None)
        return file

    def go_on(self, home: int, file: int, held: int) -> None:
        """Go on filling a file that another router opened, if it has room and nobody fills it."""
        if (
            home not in self._open
            and file in self._users
            and held < wire.SPOOL_FILE_BYTES
            and all(file != other for other, _ in self._open.values())
        ):
            self._open[home] = file, held

    def join(self, file: int) -> None:
        """Count one more user of a file."""
        self._users[file] = self._users.get(file, 0) + 1
        self._newest = max(self._newest, file)

    def leave(self, file: int) -> None:
        """Count one user less."""
        users = self._users[file] - 1
        if users:
            self._users[file] = users
            return
        del self._users[file]
        for home, (other, _) in list(self._open.items()):
            if other == file:
                del self._open[home]

    def close(self, home: int) -> None:
        """A home is no more: nothing is filled there."""
        self._open.pop(home, None)

    def users(self) -> dict[int, int]:
        """Give the files in use, and how many use each."""
        return dict(self._users)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(0 <= file <= self._newest and users > 0 for file, users in self._users.items())
        assert all(file in self._users for file, _ in self._open.values())
        files = [file for file, _ in self._open.values()]
        assert len(files) == len(dict.fromkeys(files))
