"""May a client username publish, subscribe or consume? The answer for operators, with every rule that had a say.

The rules are those that routers, gateways and workers judge by (`angarium_server.access`, `router.sessions`,
`router.guaranteed.permissions`), on the objects as they are now. Whether somebody may log in, with which password, and
from which address, is not looked at; nor what a token says of its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.topic import INBOX_PREFIX, POINT_TO_POINT_PREFIX, covers, matches, overlaps, parse_filter
from angarium_server.access import publish_refusal
from router.guaranteed.permissions import Level, level_for
from router.sessions.directory import AclProfile
from router.sessions.session import NOTHING_ALLOWED

if TYPE_CHECKING:
    from angarium_server.access import TopicRules
    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.objects import Attributes

Row = dict[str, Any]
#: What a client profile has to allow for guaranteed messages.
_GUARANTEED: Final = {"publish": "allow_guaranteed_send", "consume": "allow_guaranteed_receive"}

YES: Final = True
NO: Final = False
#: Of a topic, in a text.
_SHOWN_MAX: Final = 300


def rights_of(catalog: Catalog, request: arguments.AccessArguments) -> Row:
    """Give whether a username may do something, {"allowed": bool, "checks": [{"name", "ok", "text"}, ...]}.

    Raises:
        NotFoundError: there is no such Message VPN (40401).
    """
    vpn = catalog.show("vpn", "", request.vpn)
    checks = [_said("Message VPN", vpn["enabled"], f"{request.vpn} is {_enabled(vpn)}")]
    username = catalog.get("username", request.vpn, request.name)
    if username is None:
        missing = f"there is no username {request.name!r} in Message VPN {request.vpn!r}"
        checks.append(_said("username", NO, missing))
    else:
        checks.append(_said("username", username["enabled"], f"{request.name} is {_enabled(username)}"))
        checks += _of_profiles(catalog, request, username)
    return {"allowed": all(one["ok"] for one in checks), "checks": checks}


def _of_profiles(catalog: Catalog, request: arguments.AccessArguments, username: Attributes) -> list[Row]:
    acl = catalog.get("acl", request.vpn, username["acl_profile"])
    profile = catalog.get("profile", request.vpn, username["client_profile"])
    if acl is None or profile is None:
        kind, name = ("ACL profile", "acl_profile") if acl is None else ("client profile", "client_profile")
        return [_said(kind, NO, f"there is no {username[name]!r}: nothing is allowed")]
    checks = []
    right = _GUARANTEED.get(request.verb)
    if right and (request.guaranteed or request.verb == "consume"):
        text = f"{username['client_profile']}: {right} = {str(profile[right]).lower()}"
        checks.append(_said("client profile", profile[right], text))
    if request.verb == "consume":
        return [*checks, _consume(catalog, request, username)]
    rules = AclProfile(username["acl_profile"], acl)
    if request.verb == "publish":
        return [*checks, publish(rules, request.name, request.target)]
    may_share = bool(profile["allow_shared_subscriptions"])
    return [*checks, subscribe(rules, request.name, request.target, may_share=may_share)]


def _consume(catalog: Catalog, request: arguments.AccessArguments, username: Attributes) -> Row:
    queue = catalog.get("queue", request.vpn, request.target)
    if queue is None:
        return _said("queue", NO, f"there is no queue {request.target!r}")
    override = bool(username["guaranteed_endpoint_permission_override"])
    level = level_for(queue, request.name, is_overriding=override)
    why = f"its permission is {queue['permission']}"
    if override:
        why = f"{request.name} has guaranteed_endpoint_permission_override"
    if queue["owner"] == request.name:
        why = f"{request.name} owns it"
    return _said("queue", level >= Level.CONSUME, f"{request.target}: {why}")


def publish(acl: AclProfile, username: str, topic: str) -> Row:
    """Judge a topic as workers do; #P2P/QUE/NAME is the queue NAME."""
    try:
        rules = acl.publish_rules(username)
    except errors.InvalidRequestError as error:
        return _said("ACL profile", NO, f"{acl.name}: {error.detail}")
    code = publish_refusal(rules, topic)
    if code not in (0, errors.PUBLISH_DENIED):
        return _said("topic", NO, str(errors.error_for(code, topic[:_SHOWN_MAX])))
    if topic.startswith(INBOX_PREFIX):
        return _said("ACL profile", YES, "inboxes are open to everybody")
    inverting = [one for one in rules.exceptions if matches(one, topic)]
    return _said("ACL profile", not code, _reason(acl, rules, "publish_topic", inverting))


def subscribe(acl: AclProfile, username: str, text: str, *, may_share: bool) -> Row:
    """Judge a filter as routers do, shared or not."""
    try:
        parsed = parse_filter(text)
        rules = acl.subscribe_rules(username)
    except errors.InvalidRequestError as error:
        return _said("filter", NO, str(error))
    if parsed.pattern.startswith(POINT_TO_POINT_PREFIX):
        return _said("filter", NO, f"{text[:_SHOWN_MAX]}: addresses of clients and queues are theirs alone")
    rights = NOTHING_ALLOWED._replace(shared_allowed=may_share, filters=rules, share_names=acl.share_names)
    try:
        rights.check(parsed)
    except errors.ForbiddenError as error:
        if error.code != errors.SUBSCRIBE_DENIED:
            return _said("share name", NO, str(error))
    decides = overlaps if rules.default_allow else _covered_by
    inverting = [one for one in rules.exceptions if decides(parsed.pattern, one)]
    allowed = rules.allows_subscribe(parsed.pattern)
    return _said("ACL profile", allowed, _reason(acl, rules, "subscribe_topic", inverting))


def _covered_by(pattern: str, exception: str) -> bool:
    return covers(exception, pattern)


def _reason(acl: AclProfile, rules: TopicRules, what: str, inverting: list[str]) -> str:
    """Say which exception decides, or that the default does."""
    default = f"{acl.name}: {what}_default = {'allow' if rules.default_allow else 'disallow'}"
    if inverting:
        return f"{default}, inverted by the exception {inverting[0]!r}"
    return f"{default}, and no exception inverts it"


def _enabled(attributes: Attributes) -> str:
    return "enabled" if attributes["enabled"] else "disabled"


def _said(name: str, ok: object, text: str) -> Row:
    return {"name": name, "ok": bool(ok), "text": text}
