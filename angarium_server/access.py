"""Access rules: a default and exceptions that invert it, for topics, share names and addresses.

These are the lists of an ACL profile. Objects here decide, nothing else: the router asks them at login and
for subscriptions, workers for published topics. Where profiles come from and who refuses what is not known
here.

A subscription stands for many topics, so an exception that covers only some of them counts for the safe
side: it is enough to refuse, not to allow. With the exception `a/*`:

    default     publish to a/b    publish to c    subscribe to a/b    subscribe to a/>    subscribe to c
    allow       refused           allowed         refused             refused (overlaps)  allowed
    disallow    allowed           refused         allowed             refused (a/b/c)     refused
"""

from __future__ import annotations

import ipaddress
import zlib
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.topic import INBOX_PREFIX, check_topic, covers, is_reserved_topic, level_prefix, overlaps
from angarium.trie import FilterTrie

if TYPE_CHECKING:
    from collections.abc import Iterable

#: In an exception it stands for the name of the user who is checked.
USERNAME_VARIABLE: Final = "$client-username"
#: In an exception it stands for `username_hash` of that name: one short level without `/`.
USERNAME_HASH_VARIABLE: Final = "$client-username-hash"


class TopicRules:
    """A default and exceptions with wildcards, for topics or for share names."""

    __slots__ = ("_trie", "default_allow", "exceptions")

    def __init__(self, exceptions: Iterable[str] = (), *, default_allow: bool) -> None:
        #: What holds for all that no exception names.
        self.default_allow = default_allow
        #: Patterns, each once, in the order given.
        self.exceptions: tuple[str, ...] = tuple(dict.fromkeys(exceptions))
        #: The same patterns.
        self._trie: FilterTrie[str] = FilterTrie()
        for pattern in self.exceptions:
            self._trie.add(pattern, pattern)

    def allows_publish(self, topic: str) -> bool:
        """Tell whether messages may be published to a topic."""
        return self.default_allow != bool(self._trie.match(topic))

    def allows_subscribe(self, pattern: str) -> bool:
        """Tell whether a pattern (without `#noexport/` and `#share/<name>/`) may be subscribed to."""
        if not self.exceptions:
            return self.default_allow
        if self.default_allow:
            return not any(overlaps(pattern, exception) for exception in self.exceptions)
        return any(covers(exception, pattern) for exception in self.exceptions)

    def allows_name(self, name: str) -> bool:
        """Tell whether a share name may be used; an exception is a name, `x*`, or `*` or `>` for all."""
        return self.default_allow != any(_name_matches(exception, name) for exception in self.exceptions)


def may_publish(rules: TopicRules | None, topic: str) -> bool:
    """Tell whether a topic may be published to under rules; under those that nobody knows, to inboxes only.

    Inboxes are open to everybody, because nobody can guess one.
    """
    return topic.startswith(INBOX_PREFIX) or (rules is not None and rules.allows_publish(topic))


def publish_refusal(rules: TopicRules, topic: str) -> int:
    """Give the error code for which messages to a topic are refused under rules, or 0."""
    try:
        check_topic(topic)
    except errors.InvalidRequestError as error:
        return error.code
    if is_reserved_topic(topic):
        return errors.RESERVED_TOPIC
    return 0 if may_publish(rules, topic) else errors.PUBLISH_DENIED


class AddressRules:
    """A default and exceptions in CIDR form, for the addresses that clients connect from."""

    __slots__ = ("_networks", "default_allow")

    def __init__(self, exceptions: Iterable[str] = (), *, default_allow: bool) -> None:
        #: What holds for all that no exception names.
        self.default_allow = default_allow
        #: The exceptions, in the order given.
        self._networks = tuple(_network(text) for text in exceptions)

    def allows(self, address: str) -> bool:
        """Tell whether an address may connect. What is no IP address (a client over ipc) is in no network.

        An IPv4 address that came through an IPv6 socket (`::ffff:10.0.0.1`) counts as the IPv4 address.
        """
        if not self._networks:
            return self.default_allow
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return self.default_allow
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return self.default_allow != any(ip in network for network in self._networks)


def network_of(address: str) -> str:
    """Give what counts as one address where tries are counted: 64 bits of IPv6, which one host may have all of.

    192.0.2.7 and what is no address stay as they are; 2001:db8::7 is 2001:db8::/64; ::ffff:192.0.2.7 is 192.0.2.7.
    """
    if ":" not in address:
        return address
    try:
        ip = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))


def is_this_host(address: str) -> bool:
    """Tell whether an address, or a network as `network_of` gives it, is of this host: loopback, or no address (ipc).

    "", 127.0.0.1, 127.1.2.3, ::1, ::/64 and ::ffff:127.0.0.1 are; 10.0.0.1 and 2001:db8::/64 are not.
    """
    return address in ("", "::1", "::/64") or address.removeprefix("::ffff:").startswith("127.")


def username_hash(client_username: str) -> str:
    """Give the crc32 of a username (UTF-8) as eight hexadecimal digits in lower case.

    It shortens names, it hides nothing, and two names may share it.
    """
    return f"{zlib.crc32(client_username.encode()):08x}"


def substitute(exceptions: Iterable[str], client_username: str) -> list[str]:
    """Give the exceptions of one user: `$client-username` and `$client-username-hash` are replaced.

    A name with `/` in it becomes several levels. A name with `*` or `>` in it cannot be written as a
    literal, and as a wildcard it would reach topics of others: such a user cannot have a profile that names
    the user.

    Raises:
        InvalidRequestError: an exception names the user, and the name has `*` or `>` in it (40018).
    """
    replaced = []
    for exception in exceptions:
        text = exception.replace(USERNAME_HASH_VARIABLE, username_hash(client_username))
        if USERNAME_VARIABLE in text:
            if "*" in client_username or ">" in client_username:
                detail = (
                    f"username {client_username!r} has a wildcard, ACL exception {exception!r} cannot name it"
                )
                raise errors.invalid(detail)
            text = text.replace(USERNAME_VARIABLE, client_username)
        replaced.append(text)
    return replaced


def _name_matches(exception: str, name: str) -> bool:
    prefix = "" if exception == ">" else level_prefix(exception)
    return exception == name if prefix is None else name.startswith(prefix)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise errors.error_for(
            errors.INVALID_ATTRIBUTE, f"{text!r} is no address or CIDR range: {error}"
        ) from None
