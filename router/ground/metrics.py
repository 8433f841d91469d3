"""What the router counts and shows of itself, of the spool of the node, and of its channels of links."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics

ROUTER: Final = Metrics(
    "router",
    """
    sessions | gauge | number | clients that are logged in
    subscriptions | gauge | number | subscriptions of all of them
    filters | gauge | number | distinct filters that the workers hold: (Message VPN, filter, kind, share name)
    messages_in, bytes_in | counter | messages, bytes | of retired rounds
    messages_out, bytes_out | counter | messages, bytes | sent to subscribers
    memory_bytes | gauge | bytes | charged to clients, usernames and Message VPNs for what they make the node keep
     ([guarantees.md](guarantees.md#limits-and-who-loses))
    in_use_bytes | gauge | bytes | of the memory of the process, about; what is resident (`rss_bytes`) is more
    cache_bytes | gauge | bytes | of the topics of the fast path, their sets of filters, and the sessions of sets
    queued_bytes | gauge | bytes | waiting in the queues of slow subscribers; at most `router.egress_memory_bytes`
    eliding_topics | gauge | number | topics tracked for eliding
    rounds | counter | number | rounds retired; `messages_in` / `rounds` is the mean size of a batch
    fast_path_rounds | counter | number | of these, answered by the router itself without a worker
    rounds_cut | counter | number | of these, sent on in [pieces](node-protocol.md#steps-and-work)
    matching_work | counter | nodes | what messages cost the workers beyond what is free, and what rounds that were cut
     cost the router, in microseconds ([node-protocol.md](node-protocol.md#steps-and-work))
    publishers_held_back | counter | number | times that a client had to wait because of it
    publishers_waiting | gauge | number | clients that wait because of it now
    endpoints | gauge | number | queues and topic endpoints
    flows | gauge | number | clients' flows that are bound to them
    flow_messages | counter | messages | sent to clients on flows
    flow_messages_late | counter | messages | that homes sent for flows that were unbound meanwhile; others get them
    settles_lost | counter | messages | settled while their home was down for so long that too many settles waited
     for it; they are redelivered
    spool | | | guaranteed messages, below
    links | | | the channels of [links](#links) that are joined
    connects | counter | number | logins
    logins_waiting | gauge | number | logins whose password is compared, or waits for it
    password_checks | counter | number | passwords that were compared, and signatures of tokens that were verified;
     sessions that are resumed, and passwords that were right of late, need none
    unauthenticated | gauge | number | connections that have not logged in
    unauthenticated_put_off | counter | number | times that one of them waited because logins had used up their part
     of the router's time ([guarantees.md](guarantees.md#limits-and-who-loses))
    wills_waiting | gauge | number | [wills](mqtt.md#wills) of clients that have gone, whose delay is not over
    wills_published, wills_refused | counter | messages | that were published; that their clients may not publish
    requests_waiting | gauge | number | requests of clients that the controller answers, and those of the router
     itself, without an answer
    discards | counter by reason | messages | [as above](#discards)
    errors | counter by code | number | [as above](#errors)
    """,
)

SPOOL: Final = Metrics(
    "spool",
    """
    messages | gauge | messages | held by all endpoints; one in two endpoints counts twice
    usage_bytes | gauge | bytes | held by endpoints that take quota (no last-value queues); payload, properties and
     64 bytes for each message
    quota_bytes | gauge | bytes | `spool.max_usage_mb`
    disk_bytes | gauge | bytes | used by the workers' spools on disk
    files | gauge | number | spool files in use, each an account of about 8 MB
    files_max | gauge | number | `spool.max_files`
    delivered_unacked | gauge | messages | delivered and not settled
    delivered_unacked_max | gauge | messages | `spool.max_delivered_unacked`
    homes_full | | | workers whose disk has no room for anything new
    homes_settled | | | workers that have on disk what they were told of their endpoints
    lanes_leaving | gauge | lanes | with another home, while the one before has not parted with them on its disk
    endpoints | gauge | number | queues and topic endpoints
    producers | gauge | number | open producers
    homes_ready | gauge | workers | that have read their spool and reported its content
    recovered | gauge | 0, 1 | what the node holds is known; until then nothing guaranteed is admitted
    stores, stores_resent | counter | frames | given to the workers to store; sent again after a worker came back
    stores_under_way | gauge | frames | given to the workers and not reported as stored
    rounds_waiting | gauge | rounds | sent again, until all endpoints can take what some have already; or until a
     worker has room for more at once on its disk, or very many subscribers have an earlier one
    rounds_waited | counter | rounds | that had to wait like that
    ingress_messages | counter | messages | guaranteed messages from publishers, with those that were refused
    ingress_messages_promoted | counter | messages | direct messages that went to endpoints
    ingress_messages_demoted | counter | messages | guaranteed messages that went to direct subscribers
    moved_messages | counter | messages | published by the workers themselves: to dead message queues, moved,
     copied, to other partitions
    acks, nacks | counter | messages | acknowledged to, and refused to, their publishers
    staged_messages, staged_bytes | gauge | messages, bytes | of `messages` and `usage_bytes`: that belong to a
     stage, and wait for its commit
    lanes_kept_aside | gauge | lanes | in the spools and claimed by no object: [kept
     aside](how-to/back-up-and-restore.md#lanes-that-no-object-claims)
    stages_settling | gauge | stages | committed or aborted, and not yet released or dropped by all workers
    stages_released, stages_dropped | counter | stages | since the start of the router
    """,
)

LINK: Final = Metrics(
    "link",
    """
    name, vpn, node_id, address | | | the neighbour and the Message VPN that it joins; the id of the neighbour;
     where it comes from
    initiator | | | `local` if this node opened it
    synchronised | gauge | 0, 1 | both sides know what the other wants
    encrypted | gauge | 0, 1 | whether TLS encrypts the connection
    uptime_s | gauge | s | since it is joined
    subscriptions_in | gauge | number | filters that the neighbour wants of this node
    subscriptions_out | counter | number | entries announced to it since the link came up, changes included
    subscriptions_dropped | gauge | number | of the neighbour's endpoints, above what the queue of the link takes:
     they attract direct messages only
    untold | gauge | number | filters of the snapshot that are not announced to the neighbour yet
    messages_in, messages_out | counter | messages | from and to the neighbour, direct and guaranteed ones, since the
     link came up
    bytes_out | counter | bytes | of batches; guaranteed messages as they count for credit
    queued_messages, queued_bytes | gauge | messages, bytes | direct ones, waiting for the link
    discards | counter by reason | messages | dropped on the way to the neighbour
    """,
)
