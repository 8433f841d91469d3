"""Every error that crosses a wire or an API, each with a stable code; `docs/errors.md` lists them, and a test compares.

A code has five digits: the first three are the family that operators of other brokers know (400 the request is wrong,
403 not allowed, 503 not possible now, ...), the last two number the reasons inside it. A code never changes its meaning
and is never reused. Families become exception types, which are Python's own too where there is one (`TimeoutError`);
`AngariumError.code` tells the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping  # noqa: TC003 - the constants of this module are codes, all of them
from typing import Any, Final, NamedTuple

#: Where the documentation is. Who has the SDK alone has no `angarium docs` to read it with.
DOCUMENTATION: Final = "https://angarium.github.io/angarium/"


def documented(page: str) -> str:
    """Say where a page of the documentation is."""
    return f"{DOCUMENTATION}{page}/ or 'angarium docs {page}'"


class Reason(NamedTuple):
    """One row of the table: what happened, and what to do about it."""

    text: str
    advice: str


MALFORMED_FRAME: Final = 40001
UNKNOWN_OPERATION: Final = 40002
UNSUPPORTED_VERSION: Final = 40003
INVALID_TOPIC: Final = 40004
INVALID_FILTER: Final = 40005
INVALID_SHARE_NAME: Final = 40006
MESSAGE_TOO_LARGE: Final = 40007
BATCH_TOO_LARGE: Final = 40008
INGRESS_CREDIT_EXCEEDED: Final = 40009
SHARED_LOCAL_DISPATCH: Final = 40010
INVALID_CLIENT_NAME: Final = 40011
MAX_SUBSCRIPTIONS_EXCEEDED: Final = 40012
INVALID_ATTRIBUTE: Final = 40015
ALREADY_LOGGED_IN: Final = 40016
INVALID_CONFIGURATION: Final = 40017
INVALID_ARGUMENT: Final = 40018
UNKNOWN_FLOW_NAME: Final = 40019
ALREADY_BOUND: Final = 40020
INVALID_DURABILITY: Final = 40021
INVALID_ENDPOINT_NAME: Final = 40022
UNKNOWN_FLOW: Final = 40023
NOT_DELIVERED: Final = 40024
PARTITION_LOST: Final = 40025
PRODUCER_WINDOW_EXCEEDED: Final = 40026
INVALID_SEQUENCE: Final = 40027
EXCEPTIONS_NOT_SUPPORTED: Final = 40028
UNKNOWN_PRODUCER: Final = 40030
LINK_IMPORTS_EXCEEDED: Final = 40031
OVERLAPPING_FILTERS: Final = 40032
PUT_ASIDE: Final = 40033
UNAUTHORIZED: Final = 40101
ENDPOINT_PROPERTY_MISMATCH: Final = 40102
LINK_UNAUTHORIZED: Final = 40103
HANDSHAKE_FAILED: Final = 40104
CERTIFICATE_USERNAME: Final = 40105
JOIN_REFUSED: Final = 40106
TOKEN_EXPIRED: Final = 40107
STANDBY_UNAUTHORIZED: Final = 40108
CLIENT_CONNECT_DENIED: Final = 40301
PUBLISH_DENIED: Final = 40302
SUBSCRIBE_DENIED: Final = 40303
SHARE_NAME_DENIED: Final = 40304
SHARED_SUBSCRIPTION_DENIED: Final = 40305
SUBSCRIPTION_MANAGER_DENIED: Final = 40306
VPN_NOT_ALLOWED: Final = 40309
USERNAME_SHUTDOWN: Final = 40310
RESERVED_TOPIC: Final = 40311
GUARANTEED_SEND_DENIED: Final = 40312
GUARANTEED_RECEIVE_DENIED: Final = 40313
ENDPOINT_CREATE_DENIED: Final = 40314
PERMISSION_DENIED: Final = 40315
SHARED_ON_ENDPOINT: Final = 40316
OPERATOR_ENDPOINT: Final = 40317
CLUSTER_MISMATCH: Final = 40318
LINK_TO_OWN_NODE: Final = 40319
LINK_NOT_ALLOWED: Final = 40320
LINK_INITIATOR_MISMATCH: Final = 40321
LINK_WRONG_NODE: Final = 40322
BRIDGE_NOT_ALLOWED: Final = 40323
BRIDGE_TO_ITSELF: Final = 40324
QUEUE_UNFIT: Final = 40325
OTHER_VPN: Final = 40326
OPERATOR_DENIED: Final = 40327
CROSS_ORIGIN: Final = 40328
OBJECT_NOT_FOUND: Final = 40401
SUBSCRIPTION_NOT_FOUND: Final = 40402
UNKNOWN_STAGE: Final = 40403
UNKNOWN_ENDPOINT: Final = 40404
UNKNOWN_CLIENT_NAME: Final = 40405
UNKNOWN_RESOURCE: Final = 40406
ARCHIVE_NOT_FOUND: Final = 40430
MESSAGES_LOST: Final = 40440
METHOD_NOT_ALLOWED: Final = 40501
INVALID_SELECTOR: Final = 40601
TIMEOUT: Final = 40801
KEEPALIVE_TIMEOUT: Final = 40802
OBJECT_EXISTS: Final = 40901
OBJECT_IN_USE: Final = 40902
PRODUCER_FENCED: Final = 40903
LINK_EXISTS: Final = 40904
ENDPOINT_LEASED: Final = 40905
LEASE_LOST: Final = 40906
CLIENT_NAME_IN_USE: Final = 40907
TAKEN_OVER: Final = 40908
STANDBY_REFUSED: Final = 40909
SESSION_UNKNOWN: Final = 41001
CHANGED_MEANWHILE: Final = 41201
CONTENT_TOO_LARGE: Final = 41301
UNSUPPORTED_MEDIA_TYPE: Final = 41501
MISDIRECTED_REQUEST: Final = 42101
CONNECT_RATE_EXCEEDED: Final = 42901
CONTROL_RATE_EXCEEDED: Final = 42902
MATCHING_WORK_EXCEEDED: Final = 42903
INTERNAL: Final = 50001
VPN_UNAVAILABLE: Final = 50301
TOO_MANY_CLIENTS: Final = 50302
TOO_MANY_CONNECTIONS: Final = 50303
SHUTTING_DOWN: Final = 50304
SHARD_UNAVAILABLE: Final = 50305
DISCONNECTED_BY_OPERATOR: Final = 50306
EGRESS_BLOCKED: Final = 50307
NODE_UNREACHABLE: Final = 50308
NO_SUBSCRIPTION_MATCH: Final = 50309
SPOOL_OVER_QUOTA: Final = 50310
ENDPOINT_SHUTDOWN: Final = 50311
MAX_BIND_COUNT_EXCEEDED: Final = 50312
LOW_PRIORITY_CONGESTION: Final = 50313
SPOOL_FILES_EXCEEDED: Final = 50315
SUBSCRIPTION_DOES_NOT_MATCH: Final = 50316
SELECTOR_DOES_NOT_MATCH: Final = 50317
TOO_MANY_ENDPOINTS: Final = 50318
TOO_MANY_FLOWS: Final = 50319
HOME_NOT_READY: Final = 50320
CONTROLLER_UNAVAILABLE: Final = 50321
SPOOL_DAMAGED: Final = 50322
NO_RESPONDERS: Final = 50323
SHARE_EXCEEDED: Final = 50324
MEMORY_EXCEEDED: Final = 50325
DISK_FULL: Final = 50329
NOT_INSTALLED: Final = 50330
SPARK_FAILED: Final = 50331
ISSUER_UNAVAILABLE: Final = 50332
NOT_CONNECTED: Final = 60001
CLIENT_CLOSED: Final = 60002
CONNECT_FAILED: Final = 60003
TOO_MUCH_WAITS: Final = 60004
FORKED: Final = 60005
TLS_FAILED: Final = 60006

#: Ends of connections after which a reconnect is worth trying.
PASSING: Final = (
    CONNECT_FAILED,
    NOT_CONNECTED,
    TIMEOUT,
    KEEPALIVE_TIMEOUT,
    SHUTTING_DOWN,
    SESSION_UNKNOWN,
    CONNECT_RATE_EXCEEDED,
    HOME_NOT_READY,
    CONTROLLER_UNAVAILABLE,
)

ERRORS: Final[dict[int, Reason]] = {
    MALFORMED_FRAME: Reason("Malformed Frame", f"see {documented('protocol')}"),
    UNKNOWN_OPERATION: Reason("Unknown Operation", f"check the operation: {documented('protocol')}"),
    UNSUPPORTED_VERSION: Reason("Unsupported Protocol Version", "use a client of this version"),
    INVALID_TOPIC: Reason(
        "Invalid Topic Name", "a topic has 1 to 250 bytes of UTF-8, at most 128 levels and no NUL"
    ),
    INVALID_FILTER: Reason(
        "Subscription Parse Error", "a filter has 1 to 250 bytes of UTF-8, at most 128 levels and no NUL"
    ),
    INVALID_SHARE_NAME: Reason(
        "Invalid Share Name", "write #share/<name>/<filter> with a name without * and >"
    ),
    MESSAGE_TOO_LARGE: Reason("Message Too Long", "send a smaller message, or raise max_message_bytes"),
    BATCH_TOO_LARGE: Reason("Batch Too Large", "send fewer messages in a batch"),
    INGRESS_CREDIT_EXCEEDED: Reason("Ingress Credit Exceeded", "wait for RETIRED before publishing more"),
    SHARED_LOCAL_DISPATCH: Reason("Shared Subscription Cannot Be Local", "use a random share name instead"),
    INVALID_CLIENT_NAME: Reason(
        "Client Name Parse Error", "a client name is a valid topic of at most 160 bytes"
    ),
    MAX_SUBSCRIPTIONS_EXCEEDED: Reason(
        "Max Num Subscriptions Exceeded", "remove subscriptions or raise max_subscription_count"
    ),
    INVALID_ATTRIBUTE: Reason(
        "Invalid Attribute", f"attributes, ranges and defaults: {documented('attributes')}"
    ),
    ALREADY_LOGGED_IN: Reason("Already Logged In", "send HELLO once per connection"),
    INVALID_CONFIGURATION: Reason("Invalid Configuration", "'angarium config check FILE' names each fault"),
    INVALID_ARGUMENT: Reason("Invalid Argument", "correct what the text names"),
    UNAUTHORIZED: Reason("Unauthorized", "check VPN, username, secret; events say why"),
    CLIENT_CONNECT_DENIED: Reason("Client Connect ACL Denied", "allow the address in the ACL profile"),
    PUBLISH_DENIED: Reason("Publish ACL Denied", "allow the topic in the ACL profile"),
    SUBSCRIBE_DENIED: Reason("Subscription ACL Denied", "allow the whole filter in the ACL profile"),
    SHARE_NAME_DENIED: Reason("Share Name ACL Denied", "allow the share name in the ACL profile"),
    SHARED_SUBSCRIPTION_DENIED: Reason(
        "Shared Subscription Permission Denied", "set allow_shared_subscriptions in the client profile"
    ),
    SUBSCRIPTION_MANAGER_DENIED: Reason(
        "Subscription Manager Denied", "set subscription_manager on the username"
    ),
    VPN_NOT_ALLOWED: Reason("Message VPN Not Allowed", "check its name"),
    USERNAME_SHUTDOWN: Reason("Client Username Is Shutdown", "enable the username"),
    RESERVED_TOPIC: Reason("Topic Is Reserved", "topics that start with # belong to the broker"),
    CROSS_ORIGIN: Reason("Request From Another Site", "ask from a page of the node itself, or from no page"),
    UNKNOWN_RESOURCE: Reason("No Such Resource", "GET /api/v1 lists those that there are"),
    METHOD_NOT_ALLOWED: Reason("Method Not Allowed", "the header Allow names those that are"),
    CHANGED_MEANWHILE: Reason("Changed Meanwhile", "get it again, and try again with its new ETag"),
    CONTENT_TOO_LARGE: Reason(
        "Request Too Large", "send less at once, or raise max_body_bytes of [http] or [management]"
    ),
    UNSUPPORTED_MEDIA_TYPE: Reason(
        "Unsupported Media Type", "send JSON, with the header Content-Type: application/json"
    ),
    MISDIRECTED_REQUEST: Reason(
        "Misdirected Request",
        "ask by an address of the listen of [http] or [management], or add the name to its hosts",
    ),
    OBJECT_NOT_FOUND: Reason("Not Found", "list the objects to see the names"),
    SUBSCRIPTION_NOT_FOUND: Reason("Subscription Not Found", "see 'angarium subscription list'"),
    UNKNOWN_STAGE: Reason(
        "Unknown Stage", "it was aborted, committed, or timed out: stage the messages again"
    ),
    UNKNOWN_ENDPOINT: Reason("Unknown Queue or Topic Endpoint", "create it, or check its name"),
    UNKNOWN_CLIENT_NAME: Reason("Unknown Client Name", "see 'angarium client list'"),
    ARCHIVE_NOT_FOUND: Reason("No Such Archive", "check the path; 'angarium pipeline archive' makes one"),
    MESSAGES_LOST: Reason("Messages Are Gone", "set failOnDataLoss to false to continue without them"),
    TIMEOUT: Reason("Timeout", "try again, or raise the timeout"),
    KEEPALIVE_TIMEOUT: Reason("Keepalive Timeout", "reconnect; send a PING in each keepalive interval"),
    OBJECT_EXISTS: Reason("Already Exists", "use update, or choose another name"),
    OBJECT_IN_USE: Reason("In Use", "first remove the objects that use it"),
    CLIENT_NAME_IN_USE: Reason("Client Name Already In Use", "choose another name"),
    TAKEN_OVER: Reason(
        "Taken Over", "another connection of the same name took this one's place: give each its own"
    ),
    SESSION_UNKNOWN: Reason("Session Unknown", "connect again on a new socket"),
    CONNECT_RATE_EXCEEDED: Reason("Too Many Connects", "connect less often from one address"),
    CONTROL_RATE_EXCEEDED: Reason("Too Many Requests", "send fewer control frames per second"),
    OVERLAPPING_FILTERS: Reason("Filters Overlap Too Much", "use fewer wildcards"),
    MATCHING_WORK_EXCEEDED: Reason("Matching Work Exceeded", "publish more slowly"),
    INTERNAL: Reason("Internal Error", "report it with the log of the process"),
    VPN_UNAVAILABLE: Reason("Message VPN Unavailable", "enable the Message VPN"),
    TOO_MANY_CLIENTS: Reason("Too Many Clients", "raise max_connection_count or disconnect clients"),
    TOO_MANY_CONNECTIONS: Reason(
        "Too Many Connections For Username", "raise max_connection_count_per_client_username"
    ),
    SHUTTING_DOWN: Reason("Node Is Shutting Down", "connect again later or to another address"),
    SHARD_UNAVAILABLE: Reason("Shard Unavailable", "try again when the worker is back"),
    DISCONNECTED_BY_OPERATOR: Reason("Disconnected By Operator", "ask the operator, then connect again"),
    EGRESS_BLOCKED: Reason("Egress Blocked", "read faster; connect again"),
    NODE_UNREACHABLE: Reason("Node Unreachable", "'angarium up' starts a node; 'angarium status' shows it"),
    UNKNOWN_FLOW_NAME: Reason(
        "Unknown Flow Name",
        "the node forgot this producer; open it as a new one, and check what arrived before sending again",
    ),
    ALREADY_BOUND: Reason("Already Bound", "a temporary endpoint has one consumer"),
    INVALID_DURABILITY: Reason(
        "Invalid Queue or Topic Endpoint Durability", "ask for the durability that the endpoint has"
    ),
    INVALID_ENDPOINT_NAME: Reason(
        "Invalid Queue or Topic Endpoint Name",
        "a name has 1 to 200 bytes, no * ? ' < > & ; and no empty level",
    ),
    UNKNOWN_FLOW: Reason("Unknown Flow", "bind first"),
    NOT_DELIVERED: Reason("Message Not Delivered On This Flow", "settle each message once, on its own flow"),
    PARTITION_LOST: Reason(
        "Partition Moved To Another Flow", "the message is delivered again to the flow that has the partition"
    ),
    PRODUCER_WINDOW_EXCEEDED: Reason("Publish Window Exceeded", "wait for ACKED before publishing more"),
    INVALID_SEQUENCE: Reason("Invalid Sequence", "the sequence of a producer rises with each message"),
    EXCEPTIONS_NOT_SUPPORTED: Reason(
        "Subscription Exceptions Not Supported", "use a queue, or set subscription_exceptions"
    ),
    UNKNOWN_PRODUCER: Reason("Unknown Producer", "open the producer first"),
    PUT_ASIDE: Reason("Put Aside", "report it with 'angarium events'; do not send the same messages again"),
    ENDPOINT_PROPERTY_MISMATCH: Reason(
        "Endpoint Property Mismatch", "it exists with other properties: see 'angarium queue show'"
    ),
    GUARANTEED_SEND_DENIED: Reason(
        "Guaranteed Send Denied", "set allow_guaranteed_send in the client profile"
    ),
    GUARANTEED_RECEIVE_DENIED: Reason(
        "Guaranteed Receive Denied", "set allow_guaranteed_receive in the client profile"
    ),
    ENDPOINT_CREATE_DENIED: Reason(
        "Endpoint Create Denied",
        "set allow_endpoint_create in the client profile, or ask an operator to create it",
    ),
    PERMISSION_DENIED: Reason(
        "Permission Denied",
        "'angarium queue update NAME --set permission=consume' lets everybody consume; or change its owner",
    ),
    SHARED_ON_ENDPOINT: Reason(
        "Shared Subscriptions Not Supported On Queues / Topic Endpoints",
        "bind several consumers to a non-exclusive queue instead",
    ),
    OPERATOR_ENDPOINT: Reason("Created By An Operator", "only operators can change or delete it"),
    INVALID_SELECTOR: Reason(
        "Invalid Selector", f"at most 2,000 bytes; the grammar: {documented('selectors')}"
    ),
    PRODUCER_FENCED: Reason("Producer Opened Elsewhere", "a producer is open in one session at a time"),
    LINK_IMPORTS_EXCEEDED: Reason(
        "Too Many Subscriptions Of A Neighbour",
        "raise router.link_imports_max of this node, or keep subscriptions local with #noexport/",
    ),
    TOKEN_EXPIRED: Reason("Token Expired", "give connect a function that gets fresh ones"),
    HANDSHAKE_FAILED: Reason("Handshake Failed", "check the address: tls:// or tcp://?"),
    CERTIFICATE_USERNAME: Reason("Certificate Of Another Username", "leave the username out, or change it"),
    LINK_UNAUTHORIZED: Reason(
        "Link Not Authorized", "give both nodes the same secret in cluster.secret_file"
    ),
    STANDBY_UNAUTHORIZED: Reason(
        "Standby Not Authorized", "give both hosts the same secret in standby.secret_file"
    ),
    STANDBY_REFUSED: Reason(
        "Standby Refused", "see 'angarium standby status' on both hosts, and compare their [standby] sections"
    ),
    JOIN_REFUSED: Reason("Join Refused", "make another join token: angarium cluster token"),
    CLUSTER_MISMATCH: Reason("Cluster Name Mismatch", "set the same cluster.name on both nodes"),
    LINK_TO_OWN_NODE: Reason(
        "Link To The Node Itself", "give every node of a cluster its own node.name and data directory"
    ),
    LINK_NOT_ALLOWED: Reason(
        "No Link To This Node", "create or enable the link on both nodes: 'angarium link create NODE'"
    ),
    LINK_INITIATOR_MISMATCH: Reason(
        "Link Opened From The Wrong Side", "set the initiator of the link so that both nodes agree"
    ),
    LINK_WRONG_NODE: Reason("Another Node Answers", "check the addresses of the link, and its name"),
    BRIDGE_NOT_ALLOWED: Reason(
        "Bridge Connections Not Allowed",
        "set allow_bridge_connections in the client profile of the remote username",
    ),
    BRIDGE_TO_ITSELF: Reason(
        "Bridge To The Message VPN Itself",
        "a bridge joins two Message VPNs that no link joins, of nodes with different names or of one node",
    ),
    QUEUE_UNFIT: Reason(
        "Queue Unfit For A Bridge",
        "the remote queue needs access_type exclusive, max_redelivery_count 0 and redelivery_enabled true",
    ),
    OTHER_VPN: Reason("Other Message VPN", "attach where the Message VPN is that the token names"),
    OPERATOR_DENIED: Reason(
        "Operator Denied", "ask an administrator of the node: 'angarium operator update NAME --set role=...'"
    ),
    LINK_EXISTS: Reason(
        "Link Is Up Already",
        "an old connection ends by itself; otherwise two nodes have the same name: rename one",
    ),
    ENDPOINT_LEASED: Reason(
        "Leased By Another Reader Group",
        "wait until that group releases it, or end its lease: 'angarium queue release NAME'",
    ),
    LEASE_LOST: Reason(
        "Lease Not Held Any More",
        "open the reader group again; other consumers may have taken messages meanwhile",
    ),
    NO_SUBSCRIPTION_MATCH: Reason("No Subscription Match", "no client or queue has subscribed to the topic"),
    SPOOL_OVER_QUOTA: Reason("Spool Over Quota", "consume, purge, or raise max_spool_usage_mb"),
    ENDPOINT_SHUTDOWN: Reason("Endpoint Shutdown", "set ingress_enabled or egress_enabled of the endpoint"),
    MAX_BIND_COUNT_EXCEEDED: Reason("Max Clients Exceeded For Endpoint", "raise max_bind_count"),
    LOW_PRIORITY_CONGESTION: Reason(
        "Low Priority Msg Congestion",
        "send with class of service 3, or try again when consumers have caught up",
    ),
    SPOOL_FILES_EXCEEDED: Reason("Spool File Limit Exceeded", "consume or purge, or raise spool.max_files"),
    SUBSCRIPTION_DOES_NOT_MATCH: Reason(
        "Subscription Does Not Match", "bind with the topic of the other consumers, or alone"
    ),
    SELECTOR_DOES_NOT_MATCH: Reason(
        "Selector Does Not Match", "bind with the selector of the other consumers, or alone"
    ),
    TOO_MANY_ENDPOINTS: Reason("No More Queues or Topic Endpoints", "delete some, or raise the limit"),
    TOO_MANY_FLOWS: Reason("Too Many Flows", "close some, or raise the limit"),
    HOME_NOT_READY: Reason("Home Not Ready", "try again when its worker is back"),
    CONTROLLER_UNAVAILABLE: Reason("Controller Unavailable", "try again when it is back"),
    NO_RESPONDERS: Reason("No Responders", "nobody subscribed to the topic; start the service"),
    SHARE_EXCEEDED: Reason("Share Exceeded", "close or forget some, or raise the share"),
    MEMORY_EXCEEDED: Reason("Memory Exceeded", "give some up, or raise max_memory_bytes"),
    SPOOL_DAMAGED: Reason("Spool Damaged", "restore a backup, or move the damaged directory away"),
    DISK_FULL: Reason("Disk Full", "free space on the disk of the data directory"),
    NOT_INSTALLED: Reason("Not Installed", "install it"),
    SPARK_FAILED: Reason(
        "The Job on Spark Failed", "nothing is half done; remove the cause and run it again"
    ),
    ISSUER_UNAVAILABLE: Reason("Issuer Unavailable", "try again later, or log in in another way"),
    NOT_CONNECTED: Reason("Not Connected", "connect first, or wait for the reconnect"),
    CLIENT_CLOSED: Reason("Client Closed", "connect again"),
    CONNECT_FAILED: Reason(
        "Connect Failed", "check the address, and that the node is up: 'angarium up' starts one"
    ),
    TLS_FAILED: Reason("TLS Handshake Failed", "check the certificates of both sides"),
    TOO_MUCH_WAITS: Reason(
        "Too Much Is Waiting For The Connection", "publish less until it is back, or drop these messages"
    ),
    FORKED: Reason(
        "Client Of The Parent Process",
        "connect after the fork: gunicorn in post_fork, Celery in worker_process_init, multiprocessing in the target",
    ),
}


class AngariumError(Exception):
    """What every call of this package raises when it fails.

    Attributes:
        code: the stable five-digit code.
        text: the text of the code, without advice.
        detail: what was wrong with this very request, or empty.
    """

    def __init__(self, code: int, detail: str = "", advice: str = "") -> None:
        """Build the error of a code, with what was wrong this time, and what to do if that is not as ever."""
        reason = ERRORS.get(code) or ERRORS[INTERNAL]
        self.code = code
        self.text = reason.text
        self.detail = detail
        self.advice = advice or reason.advice
        super().__init__(f"error {code}: {self.describe()}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.detail, self.advice)

    def describe(self) -> str:
        """Say what happened and what to do next, without the code."""
        what = f"{self.text}: {self.detail}" if self.detail else self.text
        return f"{what} ({self.advice})"


class InvalidRequestError(AngariumError):
    """The request is wrong (families 400, 405, 406, 413, 415 and 421): the same request fails again."""


class InvalidArgumentError(InvalidRequestError, ValueError):
    """An argument of the call is wrong (the reasons of families 400 and 406 that the table of errors marks)."""


class UnauthorizedError(AngariumError, PermissionError):
    """Name or password are wrong (family 401)."""


class ForbiddenError(AngariumError, PermissionError):
    """Known, but not allowed (family 403)."""


class NotFoundError(AngariumError, LookupError):
    """What the request names does not exist (family 404)."""


class TimeoutExpiredError(AngariumError, TimeoutError):
    """No answer in time (family 408); whether it was done is unknown."""


class ConflictError(AngariumError):
    """It exists already, is in use, or has changed (families 409 and 412)."""


class RateLimitError(AngariumError):
    """Too fast (family 429): go on more slowly."""


class UnavailableError(AngariumError):
    """Not possible now (families 410, 500 and 503): try again later."""


class NoRespondersError(UnavailableError):
    """Nobody subscribed to the topic of a request (NO_RESPONDERS), so no reply will come."""


class ConnectionLostError(AngariumError, ConnectionError):
    """There is no connection, or not any more (family 600)."""


_FAMILIES: Final[dict[int, type[AngariumError]]] = {
    400: InvalidRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    405: InvalidRequestError,
    406: InvalidRequestError,
    408: TimeoutExpiredError,
    409: ConflictError,
    410: UnavailableError,
    412: ConflictError,
    413: InvalidRequestError,
    415: InvalidRequestError,
    421: InvalidRequestError,
    429: RateLimitError,
    500: UnavailableError,
    503: UnavailableError,
    600: ConnectionLostError,
}

#: Reasons that are about the value of an argument; the rest of their families is about the state or the protocol.
_OF_ARGUMENTS: Final = (
    INVALID_TOPIC,
    INVALID_FILTER,
    INVALID_SHARE_NAME,
    MESSAGE_TOO_LARGE,
    SHARED_LOCAL_DISPATCH,
    INVALID_CLIENT_NAME,
    INVALID_ATTRIBUTE,
    INVALID_ARGUMENT,
    INVALID_DURABILITY,
    INVALID_ENDPOINT_NAME,
    INVALID_SEQUENCE,
    INVALID_SELECTOR,
)
_KINDS: Final[dict[int, type[AngariumError]]] = {
    **dict.fromkeys(_OF_ARGUMENTS, InvalidArgumentError),
    NO_RESPONDERS: NoRespondersError,
}


def error_for(code: int, detail: str = "", advice: str = "") -> AngariumError:
    """Give the exception of the family to which a code belongs.

    Args:
        code: the five-digit code.
        detail: what was wrong with this very request.
        advice: what to do next, where the advice of the code does not fit; it does not travel.
    """
    kind = _KINDS.get(code) or _FAMILIES.get(code // 100, AngariumError)
    return kind(code, detail, advice)


def invalid(detail: str, advice: str = "") -> AngariumError:
    """Give the error of an argument that is illegal (INVALID_ARGUMENT)."""
    return error_for(INVALID_ARGUMENT, detail, advice)


def unexpected(function: str, name: str, known: Iterable[str], other_words: Mapping[str, str]) -> TypeError:
    """Give the error of an argument that a function does not have, as Python words it, with the one that may be meant.

    Args:
        function: as the application called it.
        name: what it was given.
        known: the arguments that it has.
        other_words: what others call some of them.
    """
    alike = (one for one in known if name in one or one in name)
    meant = other_words.get(name) or next(alike, None)
    question = f"; did you mean {meant!r}?" if meant else ""
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{question}")
