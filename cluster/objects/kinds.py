"""The kinds of objects that operators create, and the checks that every value of an attribute passes.

Each kind has a struct (`cluster/objects/access.py`, `cluster/objects/endpoints.py`) that says, once, every attribute
with its type, range, default, a sentence and the name that the reference broker gives it; help texts,
`docs/attributes.md` and the checks all come from there. This module knows what one object may look like. Which
objects exist, and which refer to which, is the business of `cluster.catalog`; what an object means to a
client is the router's.

Examples of `--set` and what becomes of them:

    enabled=false                               False
    eliding_delay_ms=200                        200
    publish_topic_exceptions=a/b,c/>            ["a/b", "c/>"]
    publish_topic_exceptions=["a,b/c"]          ["a,b/c"]      (JSON, for what holds a comma)
    publish_topic_exceptions=                   []
    eliding_delay_ms=70000                      refused: valid is 0..60000
    eliding_dely_ms=200                         refused: did you mean 'eliding_delay_ms'?
    id=7                                        refused: the node sets it
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_type_hints

import msgspec

from angarium import errors, topic, wire
from cluster.objects import access, bridges, endpoints, links, webhooks
from cluster.objects.attributes import (
    DEFAULT_NAME,
    MAX_NAME_BYTES,
    MAX_TOPIC_BYTES,
    Attributes,
    reference_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ObjectKind(NamedTuple):
    """One kind of object, and what its names look like."""

    name: str
    struct: type[msgspec.Struct]
    name_pattern: re.Pattern[str]
    name_rule: str
    reference: str
    in_vpn: bool = True
    #: Whether the processes of the node are told of it; those of the controller's own business are not.
    is_told: bool = True
    #: What the node sets beside the attributes.
    identity: type[msgspec.Struct] | None = None
    name_bytes_max: int = MAX_NAME_BYTES
    name_code: int = errors.INVALID_ARGUMENT


class Attribute(NamedTuple):
    """One attribute as help texts and documentation show it."""

    name: str
    type_name: str
    range_text: str
    default: Any
    sentence: str
    reference: str


_PROFILE_NAME: Final = re.compile(r"#?[A-Za-z0-9_\-]{1,32}")
_PROFILE_RULE: Final = "1 to 32 letters, digits, - and _"

#: In the order in which they are made and pushed: what is referred to comes first.
KINDS: Final[dict[str, ObjectKind]] = {
    kind.name: kind
    for kind in (
        ObjectKind(
            "vpn",
            access.Vpn,
            re.compile(r"[^*?/\s\x00-\x1f\x7f\ud800-\udfff]{1,32}"),
            "1 to 32 characters without * ? / and blanks",
            "MsgVpn",
            in_vpn=False,
        ),
        ObjectKind(
            "link",
            links.Link,
            links.NODE_NAME,
            links.NODE_RULE,
            "DmrClusterLink",
            in_vpn=False,
            identity=links.LinkIdentity,
        ),
        ObjectKind("profile", access.Profile, _PROFILE_NAME, _PROFILE_RULE, "MsgVpnClientProfile"),
        ObjectKind("acl", access.Acl, _PROFILE_NAME, _PROFILE_RULE, "MsgVpnAclProfile"),
        ObjectKind(
            "username",
            access.Username,
            re.compile(r"[^*?\s\x00-\x1f\x7f\ud800-\udfff]{1,189}"),
            "1 to 189 characters without * ? and blanks",
            "MsgVpnClientUsername",
        ),
        ObjectKind(
            "template",
            endpoints.Template,
            endpoints.TEMPLATE_NAME,
            endpoints.TEMPLATE_RULE,
            "MsgVpnQueueTemplate",
            name_bytes_max=255,
        ),
        ObjectKind(
            "queue",
            endpoints.Queue,
            endpoints.ENDPOINT_NAME,
            endpoints.ENDPOINT_RULE,
            "MsgVpnQueue",
            identity=endpoints.QueueIdentity,
            name_bytes_max=endpoints.MAX_ENDPOINT_NAME_BYTES,
            name_code=errors.INVALID_ENDPOINT_NAME,
        ),
        ObjectKind(
            "topic-endpoint",
            endpoints.TopicEndpoint,
            endpoints.ENDPOINT_NAME,
            endpoints.ENDPOINT_RULE,
            "MsgVpnTopicEndpoint",
            identity=endpoints.TopicEndpointIdentity,
            name_bytes_max=endpoints.MAX_ENDPOINT_NAME_BYTES,
            name_code=errors.INVALID_ENDPOINT_NAME,
        ),
        ObjectKind(
            "bridge",
            bridges.Bridge,
            bridges.BRIDGE_NAME,
            bridges.BRIDGE_RULE,
            "MsgVpnBridge",
            identity=bridges.BridgeIdentity,
        ),
        ObjectKind("webhook", webhooks.Webhook, webhooks.WEBHOOK_NAME, webhooks.WEBHOOK_RULE, ""),
        ObjectKind(
            "operator",
            access.Operator,
            access.OPERATOR_NAME,
            access.OPERATOR_RULE,
            "Username",
            in_vpn=False,
            is_told=False,
            name_bytes_max=256,
        ),
    )
}

#: The kinds that hold messages.
ENDPOINT_KINDS: Final = ("queue", "topic-endpoint")
#: Lists of filters of an endpoint; a filter is in one of them, once.
_FILTER_LISTS: Final = ("subscriptions", "client_subscriptions")
#: What may be written as one text with commas.
_LISTS: Final = (
    *_FILTER_LISTS,
    "addresses",
    "remote_subscriptions",
    "remote_deliver_always_subscriptions",
    "headers",
    "permanent_codes",
)
#: What of an identity a backup holds: ids and homes belong to the node that gave them.
_RESTORED: Final = ("created_by", "client_subscriptions", "session", "topic", "selector")
#: What the store of an earlier version holds of a kind, and means nothing any more: keys of CURVE, of 0.1.0.
_GONE: Final = {"link": ("public_key",), "bridge": ("public_key",)}


def kind_of(name: str) -> ObjectKind:
    """Give the kind of a name.

    Raises:
        InvalidRequestError: there is no such kind (40018).
    """
    try:
        return KINDS[name]
    except KeyError:
        detail = f"there is no kind of object {name!r}{did_you_mean(name, list(KINDS))}"
        raise errors.invalid(detail) from None


def check_name(kind: ObjectKind, name: str) -> None:
    """Refuse a name that the kind does not allow.

    Raises:
        InvalidRequestError: with the rule (40018; of endpoints 40022).
    """
    _check_name(kind, name, kind.name_bytes_max)


def check_temporary_name(kind: ObjectKind, name: str) -> None:
    """Refuse a name that a temporary endpoint of the kind cannot have.

    Raises:
        InvalidRequestError: with the rule (40022).
    """
    _check_name(kind, name, endpoints.MAX_TEMPORARY_NAME_BYTES)


def _check_name(kind: ObjectKind, name: str, bytes_max: int) -> None:
    fits = isinstance(name, str) and kind.name_pattern.fullmatch(name) is not None
    if not fits or len(name.encode(errors="replace")) > bytes_max:
        detail = f"{name!r} cannot name a {kind.name}: a name has {kind.name_rule}"
        raise errors.error_for(kind.name_code, detail)


def check_types(kind_name: str, values: Mapping[str, Any]) -> None:
    """Refuse values that are of another type than their attribute; `convert` also takes a text that says the same.

    Raises:
        InvalidRequestError: one is (40015); whether there is such an attribute is not looked at.
    """
    types = _TYPES[kind_of(kind_name).name]
    for name in values.keys() & types.keys():
        value = values[name]
        is_whole = isinstance(value, float) and value.is_integer()  # JSON has one kind of number
        try:
            msgspec.convert(int(value) if is_whole else value, types[name])
        except msgspec.ValidationError as error:
            raise _unfit(kind_of(kind_name), name, value, error) from None


def convert(kind_name: str, values: Mapping[str, Any]) -> Attributes:
    """Give checked attributes from text (`--set`, a file) or from values that have their type already.

    Raises:
        InvalidRequestError: an attribute is unknown, or its value does not fit (40015).
        ForbiddenError: a subscription is not for queues (40311, 40316).
    """
    return _convert(kind_of(kind_name), values, ())


def convert_declared(kind_name: str, values: Mapping[str, Any]) -> Attributes:
    """Do the same for a backup, which also holds what of an identity can be restored.

    Raises:
        AngariumError: what `convert` raises.
    """
    return _convert(kind_of(kind_name), values, _RESTORED)


def convert_stored(kind_name: str, values: Mapping[str, Any]) -> Attributes:
    """Do the same for what the store holds: identities are complete there.

    Raises:
        AngariumError: what `convert` raises.
    """
    return _convert(kind_of(kind_name), values, tuple(_IDENTITIES[kind_name]))


def _convert(kind: ObjectKind, values: Mapping[str, Any], identity: tuple[str, ...]) -> Attributes:
    types, fixed = _TYPES[kind.name], _IDENTITIES[kind.name]
    converted: Attributes = {}
    for name, value in values.items():
        expected = types.get(name) or (fixed.get(name) if name in identity else None)
        if expected is None:
            what = f"{kind.name} objects have no attribute {name!r}{did_you_mean(name, list(types))}"
            detail = f"{kind.name} attribute {name} is set by the node" if name in fixed else what
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
        converted[name] = _convert_value(kind, name, expected, value)
    return converted


def complete(kind_name: str, attributes: Attributes) -> Attributes:
    """Give the attributes with the defaults of all that are not named, those of the identity last."""
    kind = KINDS[kind_name]
    if kind_name == "template":
        attributes = {**endpoints.template_defaults(attributes), **attributes}
    if kind.identity is None:
        return _filled(kind.struct, attributes)
    fixed = _IDENTITIES[kind_name]
    own = {name: value for name, value in attributes.items() if name not in fixed}
    identity = {name: value for name, value in attributes.items() if name in fixed}
    return {**_filled(kind.struct, own), **_filled(kind.identity, identity)}


def load(kind_name: str, stored: Attributes) -> Attributes:
    """Give what the store holds of an object with the defaults of attributes that are new since, without those gone.

    Raises:
        AngariumError: what `convert_stored` raises.
    """
    try:
        return complete(kind_name, stored)
    except msgspec.ValidationError:
        kept = {name: value for name, value in stored.items() if name not in _GONE.get(kind_name, ())}
        return complete(kind_name, convert_stored(kind_name, kept))


def check_together(kind_name: str, attributes: Attributes) -> None:
    """Refuse complete attributes that do not go together.

    Raises:
        InvalidRequestError: with the two that do not (40015).
    """
    for name in attributes:
        clear = f"{name.removesuffix('_set_percent')}_clear_percent"
        if name.endswith("_set_percent") and attributes[name] < attributes[clear]:
            detail = (
                f"{kind_name}: {clear} = {attributes[clear]} is at most {name}, which is {attributes[name]}"
            )
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
    if kind_name == "link":
        links.check_link(attributes)
    if kind_name == "bridge":
        bridges.check_bridge(attributes)
    if kind_name == "webhook":
        webhooks.check_webhook(attributes)
    if kind_name in (*ENDPOINT_KINDS, "template"):
        endpoints.check_endpoint(kind_name, attributes)


def differing(kind_name: str, attributes: Attributes) -> Attributes:
    """Give the attributes that differ from the defaults: what a backup has to name."""
    defaults = complete(kind_name, {})
    if kind_name == "template":  # another kind of endpoint has other defaults: these are always named
        defaults |= dict.fromkeys(endpoints.template_defaults(attributes))
    kept = {name for name in defaults if name not in _IDENTITIES[kind_name] or name in _RESTORED}
    return {name: value for name, value in attributes.items() if name in kept and value != defaults[name]}


def shown(kind_name: str, vpn: str, name: str, attributes: Attributes) -> dict[str, Any]:
    """Give an object as operators may see it: without its secret."""
    where = {"vpn": vpn} if KINDS[kind_name].in_vpn else {}
    visible = {key: value for key, value in attributes.items() if key != "password"}
    if "password" in attributes:
        visible["password_set"] = bool(attributes["password"])
    return {"kind": kind_name, **where, "name": name, **visible}


def version_of(shown_object: Mapping[str, Any]) -> str:
    """Give what changes whenever an object changes, made of all that is shown of it."""
    return hashlib.blake2b(msgspec.json.encode(shown_object, order="sorted"), digest_size=12).hexdigest()


def built_in(vpn: str) -> list[tuple[str, str, Attributes]]:
    """Give what every Message VPN has, made again if missing: (kind, name, attributes that differ)."""
    allow_all: Attributes = {
        "client_connect_default": "allow",
        "publish_topic_default": "allow",
        "subscribe_topic_default": "allow",
        "subscribe_share_name_default": "allow",
    }
    objects: list[tuple[str, str, Attributes]] = [
        ("profile", DEFAULT_NAME, {}),
        ("acl", DEFAULT_NAME, allow_all),
    ]
    if vpn == DEFAULT_NAME:
        objects.append(("username", DEFAULT_NAME, {}))
    return objects


def attributes_of(kind_name: str) -> tuple[Attribute, ...]:
    """Give every attribute of a kind, for help texts and documentation."""
    return _described(kind_of(kind_name).struct)


def names_of(kind_name: str) -> frozenset[str]:
    """Give the names of the attributes of a kind that operators set."""
    return _NAMES[kind_name]


def identity_of(kind_name: str) -> tuple[Attribute, ...]:
    """Give what the node sets beside the attributes of a kind; nothing for most kinds."""
    identity = kind_of(kind_name).identity
    return () if identity is None else _described(identity)


@cache
def _described(struct: type[msgspec.Struct]) -> tuple[Attribute, ...]:
    described = []
    for field in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        metadata = field.type
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        reference = metadata.extra["reference"]
        reference = reference_name(field.name) if reference is None else reference
        sentence = metadata.extra_json_schema["description"]
        described.append(Attribute(field.name, *_type_texts(metadata.type), default, sentence, reference))
    return tuple(described)


def _filled(struct: type[msgspec.Struct], attributes: Attributes) -> Attributes:
    filled: Attributes = msgspec.to_builtins(msgspec.convert(attributes, struct))
    return filled


def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def _type_texts(kind: Any) -> tuple[str, str]:
    """Give (type, range) in the words of an operator."""
    match kind:
        case msgspec.inspect.BoolType():
            return "bool", "true or false"
        case msgspec.inspect.IntType():
            return "int", "any" if kind.ge is None else f"{kind.ge}..{kind.le}"
        case msgspec.inspect.LiteralType():
            return "choice", " or ".join(str(value) for value in kind.values)
        case msgspec.inspect.ListType():
            return "list", "any" if kind.max_length is None else f"at most {kind.max_length} entries"
        case msgspec.inspect.StrType():
            return "string", "any" if kind.max_length is None else f"at most {kind.max_length} characters"
        case msgspec.inspect.UnionType(types=(msgspec.inspect.StructType(), *_)):
            return "map", "any, or none"
        case msgspec.inspect.UnionType():
            return "string", "any, or none"
    raise AssertionError(f"no text for {kind!r}")


def _convert_value(kind: ObjectKind, name: str, expected: Any, value: Any) -> Any:
    try:
        if isinstance(value, str) and (name.endswith("_exceptions") or name in _LISTS):
            value = _split_list(value)
        elif name == "permission" and value == endpoints.NO_ACCESS_SYNONYM:
            value = endpoints.NO_ACCESS
        converted = msgspec.convert(value, expected, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise _unfit(kind, name, value, error) from None
    check = _CHECKS.get(name)
    if check is not None and converted is not None:
        for entry in converted if isinstance(converted, list) else (converted,):
            check(f"{kind.name} attribute {name}", entry)
    return list(dict.fromkeys(converted)) if name in _FILTER_LISTS else converted


def _unfit(kind: ObjectKind, name: str, value: Any, error: Exception) -> errors.AngariumError:
    """Give the refusal of a value that does not fit an attribute."""
    known = [*attributes_of(kind.name), *identity_of(kind.name)]
    about = next(attribute for attribute in known if attribute.name == name)
    shown_value = "" if name == "password" else f" = {value!r}"
    detail = f"{kind.name} attribute {name}{shown_value}: {error}; valid is {about.range_text}"
    return errors.error_for(errors.INVALID_ATTRIBUTE, detail)


def _split_list(text: str) -> Any:
    if text.startswith("["):
        return msgspec.json.decode(text)
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_network(where: str, text: str) -> None:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        detail = f"{where}: {error}; an address looks like 10.0.0.0/8 or 2001:db8::/32"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail) from None


def _check_topic_filter(where: str, text: str) -> None:
    try:
        topic.parse_filter(text)
    except errors.AngariumError as error:
        raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: {error.describe()}") from None


def _check_share_name(where: str, text: str) -> None:
    if not text or "/" in text or "\0" in text or len(text.encode(errors="replace")) > MAX_TOPIC_BYTES:
        detail = f"{where}: {text!r} is no share name: 1 to {MAX_TOPIC_BYTES} bytes without /"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)


def _check_queue_name(where: str, text: str) -> None:
    of_link = text.startswith(wire.LINK_NAME_PREFIX)
    if text and not of_link and endpoints.ENDPOINT_NAME.fullmatch(text) is None:
        detail = f"{where}: {text!r} names no queue: a name has {endpoints.ENDPOINT_RULE}"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)


def did_you_mean(name: str, known: list[str]) -> str:
    """Give the end of a sentence that says there is no such name: the one that looks like it, or all."""
    close = difflib.get_close_matches(str(name), known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


_CHECKS: Final[dict[str, Callable[[str, str], None]]] = {
    "client_connect_exceptions": _check_network,
    "publish_topic_exceptions": _check_topic_filter,
    "subscribe_topic_exceptions": _check_topic_filter,
    "subscribe_share_name_exceptions": _check_share_name,
    "subscriptions": endpoints.check_queue_filter,
    "client_subscriptions": endpoints.check_queue_filter,
    "topic": endpoints.check_topic,
    "dead_message_queue": _check_queue_name,
    "name_filter": endpoints.check_name_filter,
    "addresses": links.check_address,
    "ca_pem": bridges.check_ca_pem,
    "remote_subscriptions": bridges.check_remote_filter,
    "remote_deliver_always_subscriptions": bridges.check_remote_filter,
    "remote_password_file": bridges.check_password_file,
    "url": webhooks.check_url,
    "headers": webhooks.check_header,
    "secret_file": bridges.check_password_file,
    "authorization_file": bridges.check_password_file,
}
_TYPES: Final[dict[str, dict[str, Any]]] = {kind.name: _types(kind.struct) for kind in KINDS.values()}
_NAMES: Final = {name: frozenset(types) for name, types in _TYPES.items()}
_IDENTITIES: Final[dict[str, dict[str, Any]]] = {
    kind.name: _types(kind.identity) if kind.identity is not None else {} for kind in KINDS.values()
}
