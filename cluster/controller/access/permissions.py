"""Who may do what: the judge of all requests of the admin API, by the table of its operations.

Each operation has the least role, and the scope, which says where it is found what a request is about: an operator of
one Message VPN may ask for what is in it, one without a Message VPN for everything. Who has one and asks for a
list of all gets that of his own. Anything else outside of his scope is refused alike, whether it exists or not.

Pure. The controller asks for every request, whichever door it came by; nobody else judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args

import msgspec

from angarium import errors
from cluster.admin.operations import ADMINISTRATOR, OPERATIONS, OPERATOR, VIEWER, Scope
from cluster.objects import Role, is_like, kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.controller.access.callers import Who

#: From the one who may least to the one who may most.
ROLES: Final[tuple[Role, ...]] = get_args(Role)

_Request = TypeVar("_Request", bound=msgspec.Struct)


class KindRule(NamedTuple):
    """The least roles that objects of a kind take; of kinds that are in no Message VPN it is a role of the node."""

    see: Role
    change: Role


#: Of the kinds of objects.
KINDS: Final[dict[str, KindRule]] = {
    "vpn": KindRule(VIEWER, ADMINISTRATOR),
    "link": KindRule(VIEWER, ADMINISTRATOR),
    "profile": KindRule(VIEWER, ADMINISTRATOR),
    "acl": KindRule(VIEWER, ADMINISTRATOR),
    "username": KindRule(VIEWER, ADMINISTRATOR),
    "template": KindRule(VIEWER, OPERATOR),
    "queue": KindRule(VIEWER, OPERATOR),
    "topic-endpoint": KindRule(VIEWER, OPERATOR),
    "bridge": KindRule(VIEWER, ADMINISTRATOR),
    "webhook": KindRule(VIEWER, ADMINISTRATOR),
    "operator": KindRule(ADMINISTRATOR, ADMINISTRATOR),
}
#: Attributes that take the role for the whole node: where it connects to, as whom, whom it trusts, with which files.
NODE_ATTRIBUTES: Final[dict[str, frozenset[str]]] = {
    "bridge": frozenset(
        ("remote_vpn", "addresses", "server_name", "ca_pem", "remote_username", "remote_password_file")
    ),
    "webhook": frozenset(("url", "ca_pem", "authorization_file", "secret_file")),
}


def judge(who: Who, operation: str, request: _Request) -> _Request:
    """Give the request, narrowed to the scope of who asks.

    Raises:
        ForbiddenError: it takes another role, or another scope (40327).
        InvalidRequestError: there is no such kind of object (40018).
    """
    role, scope, *_ = OPERATIONS[operation]
    if scope == "host":
        if who.door != "local":
            detail = f"{operation} is for the management process, and not for operators"
            raise errors.error_for(errors.OPERATOR_DENIED, detail)
        return request
    if scope in ("object", "objects"):
        role = _role_for(operation, request)
    outside = [place for place in _places(operation, scope, request) if place != who.vpn] if who.vpn else []
    if outside or ROLES.index(who.role) < ROLES.index(role):
        raise refusal(who, operation, role, outside)
    return _narrowed(who, scope, request) if who.vpn else request


def refusal(who: Who, operation: str, role: Role, outside: list[str]) -> errors.AngariumError:
    """Give the refusal of an operation that takes another role, or is about what lies outside of a scope."""
    needed = f"the role {role}"
    if outside:
        needed += (
            f" in Message VPN {outside[0]!r}, or of the whole node" if outside[0] else " of the whole node"
        )
    has = f"{who.role} of Message VPN {who.vpn!r}" if who.vpn else who.role
    return errors.error_for(
        errors.OPERATOR_DENIED, f"{operation} takes {needed}; operator {who.name!r} is {has}"
    )


def may_have(who: Who, kind: str, vpn: str) -> bool:
    """Tell whether a backup for somebody has the objects of a kind in a Message VPN: those that he may apply again."""
    return not who.vpn or (vpn == who.vpn and kind not in NODE_ATTRIBUTES)


def _role_for(operation: str, request: Any) -> Role:
    rule = KINDS[kind_of(request.kind).name]
    return rule.see if OPERATIONS[operation].role == VIEWER else rule.change


def _places(operation: str, scope: Scope, request: Any) -> list[str]:
    """Give the Message VPNs that a request is about; "" is the node."""
    match scope:
        case "node":
            return [""]
        case "vpn":
            return [request.vpn]
        case "vpns":
            return [] if request.vpn is None else [request.vpn]
        case "objects" if request.kind == "vpn" or (kind_of(request.kind).in_vpn and request.vpn is None):
            return []
        case "object" | "objects":
            if request.kind == "vpn" and operation == "objects.show":
                return [request.name]
            is_new = operation == "objects.create"
            return [_place(request.kind, request.vpn, getattr(request, "attributes", {}), is_new=is_new)]
        case "declared":
            found = getattr(request, "objects", ())
            return [_place(kind, vpn, attributes, is_new=True) for kind, vpn, _, attributes in found]
    return []


def _place(kind: str, vpn: str | None, attributes: Mapping[str, Any], *, is_new: bool) -> str:
    """Give where an object is, or is to be; what is set for the whole node of it makes it one of the node."""
    of_node = NODE_ATTRIBUTES.get(kind, frozenset())
    if not kind_of(kind).in_vpn or (of_node and (is_new or not of_node.isdisjoint(attributes))):
        return ""
    return vpn or ""


def _narrowed(who: Who, scope: Scope, request: _Request) -> _Request:
    """Give a request for a list that has no more than what is in the scope of who asks."""
    asked: Any = request
    if scope == "objects" and asked.kind == "vpn":
        own = is_like(who.vpn, asked.name)
        return msgspec.structs.replace(request, name=who.vpn if own else "")
    if scope in ("vpns", "objects") and asked.vpn is None:
        return msgspec.structs.replace(request, vpn=who.vpn)
    return request
