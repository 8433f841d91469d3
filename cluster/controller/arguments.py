"""The arguments of the operations that `cluster/controller/controller.py` lists, checked before anything is done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `status`, `workers`, `config.show`, `config.export`, `down`."""


class StatsArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `stats`."""

    role: str | None = None


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `objects.list`; vpn None means all Message VPNs, name is a pattern with * and ?."""

    kind: str
    vpn: str | None = "default"
    name: str = "*"


class ObjectArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `objects.show` and `objects.delete`; a Message VPN itself has no vpn."""

    kind: str
    name: str
    vpn: str | None = "default"


class ChangeArguments(ObjectArguments):
    """Of `objects.create` and `objects.update`."""

    attributes: dict[str, Any] = {}


class ScaleArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `workers.scale`."""

    workers: Annotated[int, Meta(ge=1, le=64)]


class VpnArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `clients.list`; None means all Message VPNs."""

    vpn: str | None = None


class ClientArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `clients.show` and `clients.disconnect`."""

    name: str
    vpn: str = "default"


class SubscriptionArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `subscriptions.list`."""

    client: str | None = None
    vpn: str | None = None


class EventArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `events`; since is the id of an event or an ISO time."""

    since: int | str | None = None
    limit: Annotated[int, Meta(ge=1)] = 1_000


class ApplyArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `config.apply`; an object is [kind, vpn, name, attributes]."""

    objects: list[tuple[str, str | None, str, dict[str, Any]]]
    dry_run: bool = False


class LogLevelArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `log_level`; without role and index it is for all processes."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"]
    role: str | None = None
    index: int | None = None
