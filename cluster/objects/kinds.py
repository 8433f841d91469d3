"""The objects that operators create: Message VPNs, client usernames, client profiles and ACL profiles.

Each kind is a struct that says, once, every attribute with its type, range, default, a sentence and the name
that the reference broker gives it; help texts, `docs/attributes.md` and the checks all come from here. This
module knows what one object may look like. Which objects exist, and which refer to which, is the business of
`cluster/controller/controller.py`; what an object means to a client is the router's.

Examples of `--set` and what becomes of them:

    enabled=false                               False
    eliding_delay_ms=200                        200
    publish_topic_exceptions=a/b,c/>            ["a/b", "c/>"]
    publish_topic_exceptions=["a,b/c"]          ["a,b/c"]      (JSON, for what holds a comma)
    publish_topic_exceptions=                   []
    eliding_delay_ms=70000                      refused: valid is 0..60000
    eliding_dely_ms=200                         refused: did you mean 'eliding_delay_ms'?
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta

from angarium import errors, topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The name of the Message VPN, username and profiles that exist from the first start.
DEFAULT_NAME: Final = "default"
#: Exceptions in one list; every subscription is judged against all of them.
MAX_EXCEPTIONS: Final = 1_000
#: Bytes of one topic, filter or share name.
MAX_TOPIC_BYTES: Final = 250

_TEXT_MAX: Final = 250
_CONNECTIONS_MAX: Final = 200_000
_SUBSCRIPTIONS_MAX: Final = 4_294_967_295
_WORK_UNITS_MAX: Final = 262_144

Attributes = dict[str, Any]
Action = Literal["allow", "disallow"]
_Text = Annotated[str, Meta(max_length=_TEXT_MAX)]
_WorkUnits = Annotated[int, Meta(ge=2, le=_WORK_UNITS_MAX)]
_Burst = Annotated[int, Meta(ge=0, le=_WORK_UNITS_MAX)]
_Connections = Annotated[int, Meta(ge=0, le=_CONNECTIONS_MAX)]
_Subscriptions = Annotated[int, Meta(ge=0, le=_SUBSCRIPTIONS_MAX)]
_Exceptions = Annotated[list[_Text], Meta(max_length=MAX_EXCEPTIONS)]


def _about(sentence: str, reference: str = "") -> Meta:
    """Attach a sentence and the reference's name (MsgVpn..., without the object's prefix) to an attribute."""
    return Meta(description=sentence, extra={"reference": reference})


class Vpn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Message VPN: clients see messages and objects of their own one only."""

    enabled: Annotated[bool, _about("Clients may connect.", "enabled")] = True
    max_connection_count: Annotated[
        _Connections, _about("Clients connected at the same time.", "maxConnectionCount")
    ] = _CONNECTIONS_MAX
    max_subscription_count: Annotated[
        _Subscriptions,
        _about("Subscriptions of all its connected clients together.", "maxSubscriptionCount"),
    ] = 500_000


class Username(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client username: who may log in, and with which profiles."""

    enabled: Annotated[bool, _about("Clients may log in under this name.", "enabled")] = True
    password: Annotated[
        _Text,
        _about(
            "Kept as a scrypt hash and never shown; empty is accepted on loopback and ipc only.", "password"
        ),
    ] = ""
    acl_profile: Annotated[_Text, _about("The ACL profile of its clients.", "aclProfileName")] = DEFAULT_NAME
    client_profile: Annotated[_Text, _about("The client profile of its clients.", "clientProfileName")] = (
        DEFAULT_NAME
    )
    subscription_manager: Annotated[
        bool, _about("Its clients may subscribe for other clients.", "subscriptionManagerEnabled")
    ] = False
    guaranteed_endpoint_permission_override: Annotated[
        bool,
        _about(
            "Its clients have an owner's rights on every endpoint.",
            "guaranteedEndpointPermissionOverrideEnabled",
        ),
    ] = False


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client profile: what a client may do and how much of the node it may take."""

    allow_shared_subscriptions: Annotated[
        bool,
        _about("May create and join shared subscriptions.", "allowSharedSubscriptionsEnabled"),
    ] = True
    eliding: Annotated[
        bool,
        _about("Newer messages may replace older ones of their topic while it is slow.", "elidingEnabled"),
    ] = False
    eliding_delay_ms: Annotated[
        int,
        Meta(ge=0, le=60_000),
        _about("Between two deliveries of one topic; 0 replaces only while congested.", "elidingDelay"),
    ] = 0
    eliding_max_topics: Annotated[
        int,
        Meta(ge=1, le=32_000),
        _about("Topics tracked for eliding per client.", "elidingMaxTopicCount"),
    ] = 256
    max_subscription_count: Annotated[
        _Subscriptions, _about("Subscriptions of one client.", "maxSubscriptionCount")
    ] = 500_000
    max_connection_count_per_client_username: Annotated[
        _Connections,
        _about("Clients of one username at the same time.", "maxConnectionCountPerClientUsername"),
    ] = _CONNECTIONS_MAX
    queue_direct_1_max_depth: Annotated[
        _WorkUnits,
        _about("Egress queue of class of service 1, in units of 2048 bytes.", "queueDirect1MaxDepth"),
    ] = 20_000
    queue_direct_1_min_msg_burst: Annotated[
        _Burst, _about("Messages it holds whatever their size.", "queueDirect1MinMsgBurst")
    ] = 4
    queue_direct_2_max_depth: Annotated[
        _WorkUnits,
        _about("Egress queue of class of service 2, in units of 2048 bytes.", "queueDirect2MaxDepth"),
    ] = 20_000
    queue_direct_2_min_msg_burst: Annotated[
        _Burst, _about("Messages it holds whatever their size.", "queueDirect2MinMsgBurst")
    ] = 4
    queue_direct_3_max_depth: Annotated[
        _WorkUnits,
        _about("Egress queue of class of service 3, in units of 2048 bytes.", "queueDirect3MaxDepth"),
    ] = 20_000
    queue_direct_3_min_msg_burst: Annotated[
        _Burst, _about("Messages it holds whatever their size.", "queueDirect3MinMsgBurst")
    ] = 4


class Acl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ACL profile: four lists, each a default action and exceptions that invert it. A new one denies."""

    client_connect_default: Annotated[
        Action, _about("Whether clients may connect.", "clientConnectDefaultAction")
    ] = "disallow"
    client_connect_exceptions: Annotated[
        _Exceptions, _about("Addresses in CIDR form, 10.0.0.0/8.", "clientConnectExceptions")
    ] = msgspec.field(default_factory=list)
    publish_topic_default: Annotated[
        Action, _about("Whether clients may publish to a topic.", "publishTopicDefaultAction")
    ] = "disallow"
    publish_topic_exceptions: Annotated[
        _Exceptions,
        _about("Topics, with wildcards and $client-username if need be.", "publishTopicExceptions"),
    ] = msgspec.field(default_factory=list)
    subscribe_topic_default: Annotated[
        Action, _about("Whether clients may subscribe to a filter.", "subscribeTopicDefaultAction")
    ] = "disallow"
    subscribe_topic_exceptions: Annotated[
        _Exceptions,
        _about("Topics, with wildcards and $client-username if need be.", "subscribeTopicExceptions"),
    ] = msgspec.field(default_factory=list)
    subscribe_share_name_default: Annotated[
        Action, _about("Whether clients may use a share name.", "subscribeShareNameDefaultAction")
    ] = "allow"
    subscribe_share_name_exceptions: Annotated[
        _Exceptions, _about("Share names, with wildcards.", "subscribeShareNameExceptions")
    ] = msgspec.field(default_factory=list)


class ObjectKind(NamedTuple):
    """One kind of object, and what its names look like."""

    name: str
    struct: type[msgspec.Struct]
    name_pattern: re.Pattern[str]
    name_rule: str
    reference: str
    in_vpn: bool = True


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
            Vpn,
            re.compile(r"[^*?/\s\x00-\x1f\x7f\ud800-\udfff]{1,32}"),
            "1 to 32 characters without * ? / and blanks",
            "MsgVpn",
            in_vpn=False,
        ),
        ObjectKind("profile", Profile, _PROFILE_NAME, _PROFILE_RULE, "MsgVpnClientProfile"),
        ObjectKind("acl", Acl, _PROFILE_NAME, _PROFILE_RULE, "MsgVpnAclProfile"),
        ObjectKind(
            "username",
            Username,
            re.compile(r"[^*?\s\x00-\x1f\x7f\ud800-\udfff]{1,189}"),
            "1 to 189 characters without * ? and blanks",
            "MsgVpnClientUsername",
        ),
    )
}

#: Bytes of any name, so that its key fits the store.
MAX_NAME_BYTES: Final = 189


def kind_of(name: str) -> ObjectKind:
    """Give the kind of a name.

    Raises:
        InvalidRequestError: there is no such kind (40018).
    """
    try:
        return KINDS[name]
    except KeyError:
        detail = f"there is no kind of object {name!r}{_did_you_mean(name, list(KINDS))}"
        raise errors.error_for(errors.INVALID_ARGUMENT, detail) from None


def check_name(kind: ObjectKind, name: str) -> None:
    """Refuse a name that the kind does not allow.

    Raises:
        InvalidRequestError: with the rule (40018).
    """
    fits = isinstance(name, str) and kind.name_pattern.fullmatch(name) is not None
    if not fits or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        detail = f"{name!r} cannot name a {kind.name}: a name has {kind.name_rule}"
        raise errors.error_for(errors.INVALID_ARGUMENT, detail)


def convert(kind_name: str, values: Mapping[str, Any]) -> Attributes:
    """Give checked attributes from text (`--set`, a file) or from values that have their type already.

    Raises:
        InvalidRequestError: an attribute is unknown, or its value does not fit (40015).
    """
    kind = kind_of(kind_name)
    types = _TYPES[kind.name]
    converted: Attributes = {}
    for name, value in values.items():
        if name not in types:
            detail = f"{kind.name} objects have no attribute {name!r}{_did_you_mean(name, list(types))}"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
        converted[name] = _convert_value(kind, name, types[name], value)
    return converted


def complete(kind_name: str, attributes: Attributes) -> Attributes:
    """Give the attributes with the defaults of all that are not named."""
    struct = KINDS[kind_name].struct
    filled: Attributes = msgspec.to_builtins(msgspec.convert(attributes, struct))
    return filled


def differing(kind_name: str, attributes: Attributes) -> Attributes:
    """Give the attributes that differ from the defaults: what a backup has to name."""
    defaults = complete(kind_name, {})
    return {name: value for name, value in attributes.items() if value != defaults[name]}


def shown(kind_name: str, vpn: str, name: str, attributes: Attributes) -> dict[str, Any]:
    """Give an object as operators may see it: without its secret."""
    where = {"vpn": vpn} if KINDS[kind_name].in_vpn else {}
    visible = {key: value for key, value in attributes.items() if key != "password"}
    if "password" in attributes:
        visible["password_set"] = bool(attributes["password"])
    return {"kind": kind_name, **where, "name": name, **visible}


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
        objects.append(("username", DEFAULT_NAME, {"guaranteed_endpoint_permission_override": True}))
    return objects


def attributes_of(kind_name: str) -> list[Attribute]:
    """Give every attribute of a kind, for help texts and documentation."""
    struct = kind_of(kind_name).struct
    described = []
    for field in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
        metadata = field.type
        default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        type_name, range_text = _type_texts(metadata.type)
        described.append(
            Attribute(
                field.name,
                type_name,
                range_text,
                default,
                metadata.extra_json_schema["description"],
                metadata.extra["reference"],
            )
        )
    return described


def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def _type_texts(kind: Any) -> tuple[str, str]:
    """Give (type, range) in the words of an operator."""
    match kind:
        case msgspec.inspect.BoolType():
            return "bool", "true or false"
        case msgspec.inspect.IntType():
            return "int", f"{kind.ge}..{kind.le}"
        case msgspec.inspect.LiteralType():
            return "choice", " or ".join(str(value) for value in kind.values)
        case msgspec.inspect.ListType():
            return "list", f"at most {kind.max_length} entries"
        case msgspec.inspect.StrType():
            return "string", f"at most {kind.max_length} characters"
    raise AssertionError(f"no text for {kind!r}")


def _convert_value(kind: ObjectKind, name: str, expected: Any, value: Any) -> Any:
    try:
        if isinstance(value, str) and name.endswith("_exceptions"):
            value = _split_list(value)
        converted = msgspec.convert(value, expected, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        about = next(attribute for attribute in attributes_of(kind.name) if attribute.name == name)
        shown_value = "" if name == "password" else f" = {value!r}"
        detail = f"{kind.name} attribute {name}{shown_value}: {error}; valid is {about.range_text}"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail) from None
    check = _CHECKS.get(name)
    if check is not None:
        for entry in converted:
            check(f"{kind.name} attribute {name}", entry)
    return converted


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


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


_CHECKS: Final[dict[str, Callable[[str, str], None]]] = {
    "client_connect_exceptions": _check_network,
    "publish_topic_exceptions": _check_topic_filter,
    "subscribe_topic_exceptions": _check_topic_filter,
    "subscribe_share_name_exceptions": _check_share_name,
}
_TYPES: Final[dict[str, dict[str, Any]]] = {kind.name: _types(kind.struct) for kind in KINDS.values()}
