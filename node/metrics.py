"""What a worker counts and shows of itself, of its spool, and of a lane.

The last two are in the answers of the admin API, not on `/metrics`: there may be very many lanes.
"""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics

WORKER: Final = Metrics(
    "worker",
    """
    filters | gauge | number | filters that it holds: those of its topics, and all with wildcards
    filter_sets | gauge | number | distinct combinations of filters in use
    vpns | gauge | number | Message VPNs with filters, or published to since
    rules | gauge | number | lists of publish rules
    batches | counter | number | batches matched
    whole_batches | counter | number | of these, sent on as they came: all rows went to one set
    malformed_batches | counter | number | batches against the protocol; each ended a session
    rows | counter | messages | matched, with those refused
    rows_unmatched | counter | messages | matched nothing
    refused | counter by code | messages | refused
    in_use_bytes | gauge | bytes | of the memory of the process, as of the router
    cache_bytes | gauge | bytes | of the topics below and their sets; at most `worker.topic_cache_bytes` per Message
     VPN and 8 MiB
    topics_cached | gauge | number | topics whose matches it remembers
    topics_matched | counter | number | topics that it had to match because they were not remembered
    topics_evicted | counter | number | forgotten for lack of room; if it rises fast, raise `worker.topic_cache_bytes`
     or `worker.topic_cache_max`
    topics_invalidated | counter | number | forgotten because a subscription may have changed them
    matching_work | counter | nodes | visited in the tree of filters, and what making the answers cost
    paused_batches | counter | number | batches that took more than one step
    batches_waiting | gauge | number | those that wait for their next one
    spans_made, spans_exported, spans_dropped | counter | number | [spans](tracing.md#spans-of-the-node) of sampled
     messages; that the collector took; for which there was no room, or that it did not take
    spans_waiting | gauge | number | that the collector has not taken yet
    traced_messages | gauge | messages | of which it makes spans now
    traces_begun, traces_passed_over | counter | messages | of which it began to make spans; sampled ones that were
     too many, in a second or at a time
    starts | counter | number | times that a router started it
    stale_frames | counter | frames | of another router than its own, dropped
    faults | counter | frames | that no router sends, dropped; above 0 is a fault of the node
    undelivered_answers | counter | frames | answers that could not be sent because the router was gone
    index, incarnation | | | which worker it is, and which start of it
    router_incarnation | | | the router that started it; 0 before
    epoch | | | version of the slot table
    last_frame_at_s | | s | when the newest frame came, by the monotonic clock of the host
    """,
)

SPOOL_OF_WORKER: Final = Metrics(
    "home",
    """
    lanes, flows | gauge | number | partitions of endpoints, and flows, that it has
    messages_spooled, bytes_spooled, delivered_unacked | gauge | messages, bytes, messages | in all its lanes
    delivered_unacked_allowance | gauge | messages | what it may have delivered and not settled: its part of
     `spool.max_delivered_unacked`, as the need is
    messages_unreadable | counter | messages | put aside because their block is damaged
    ttl_expired_discard, max_redelivery_exceeded_discard, rejected_discard | counter | messages | dead and deleted:
     no dead message queue took them
    rows_dropped | counter | messages | for lanes that it does not have (any more)
    received, accepted, stored | counter | number | the newest STORE of this router that came, counts, is on disk
    unstored, unstored_bytes | gauge | number, bytes | STOREs that are not on disk
    writes, write_changes, writes_failed | counter | number | groups written, rows in them, groups for which there
     was no room
    stores_written, stores_not_written | counter | number | STOREs that were written, and relaxed ones that were
     consumed before
    segments_to_delete, segments_to_update, lanes_to_clear | gauge | number | what the next writes take along
    lanes_kept_aside, messages_kept_aside | gauge | lanes, messages | in the spool and claimed by no object: [kept
     aside](how-to/back-up-and-restore.md#lanes-that-no-object-claims)
    spool_full | gauge | 0, 1 | the disk is full: new messages are refused (50329)
    disk_bytes | gauge | bytes | of the pages in use
    spool_files | gauge | number | [spool files](guarantees.md#limits-and-who-loses) with messages of this worker;
     one may have messages of several
    blocks, unwritten_blocks | gauge | number | packs of messages on disk; not on disk yet
    blocks_made | counter | number | packs of messages made so far
    blocks_read, block_bytes_read | counter | number, bytes | read from disk so far
    cache_bytes | gauge | bytes | of blocks that are kept in memory
    repacked_blocks, repacked_rows, merged_segments | counter | number | packed again so far
    small_blocks, sparse_blocks | gauge | number | waiting for it
    """,
    """
    stages, messages_staged, bytes_staged | gauge | number, messages, bytes | that wait for a commit; not in
     `messages_spooled`
    messages_released, messages_dropped | counter | messages | of stages that were committed; of those that were
     aborted, aged, or lost their endpoint
    records, record_producers | gauge | number | what is known of producers, so that a resend keeps its verdict
    handouts, whole_blocks, rows_sent, bytes_sent | counter | number | deliveries; of these unopened blocks;
     messages and bytes in them
    moves_sent, rows_moved, rows_refused, moves_stale | counter | number | moves to dead message queues and of
     operators
    moves_under_way, jobs_running | gauge | number | of them, now
    lanes_adopted, messages_adopted | counter | number | taken over from other workers
    lanes_importing, messages_importing | gauge | number | being taken over, or still in the spool that they came from;
     messages that are still to come
    lanes_copying | gauge | number | copied while their worker goes on serving them, to be taken over then
    early_copies, early_copy_bytes | counter | number, bytes | such copies, and what was copied
    lanes_parted | counter | number | given to other workers
    lanes_parting | gauge | number | of these, those that are still in this spool
    leases, leased_messages | gauge | number | lanes that reader groups have leased, and messages that they have
     planned and not acknowledged
    leases_taken, leases_timed_out, lease_questions | counter | number | leases since the start; those that ended
     because nobody used them; what reader groups asked
    retained_topics | gauge | number | topics of which it retains the newest message; some of these may have expired
    retained_reads, retained_rows_read | counter | number, messages | pages that were asked for of what it retains, and
     messages in them
    selector_ms, selector_waits | counter | ms, number | what [selectors](selectors.md#what-a-selector-costs) of
     clients cost so far; how often one had to wait because its user has used its time up
    lanes_waiting_for_effort | gauge | number | partitions that wait for their turn now
    home_faults, home_stale_frames | counter | frames | that no router sends; of another router
    home_stores_resent, home_stores_out_of_order | counter | number | STOREs that came again, or too early
    home_rows_promoted_dropped | counter | messages | direct messages for endpoints, dropped because too much waited
     for the disk
    """,
)

LANE: Final = Metrics(
    "lane",
    """
    messages_spooled, bytes_spooled | gauge | messages, bytes | that it holds
    delivered_unacked | gauge | messages | delivered to consumers and not settled
    messages_ready, messages_delayed, messages_moving | gauge | messages | that may be delivered; wait for a delay
     or for the selector of a topic endpoint; are dead or taken by an operator
    total_messages_spooled, total_bytes_spooled | counter | messages, bytes | stored so far
    messages_staged, bytes_staged | gauge | messages, bytes | of those above that belong to a
     [stage](guarantees.md#staged-publishing) and wait for its commit
    messages_delivered, messages_redelivered, messages_browsed | counter | messages | sent to consumers; of these
     not for the first time; sent to browsers
    confirmed_delivered, request_for_redelivery, rejected | counter | messages | accepted, failed, rejected by
     consumers
    settles_refused | counter | number | settlements of what the flow did not have
    selector_examined, selector_match, selector_discard | counter | messages | looked at by selectors; selected;
     removed from a topic endpoint
    last_value_replaced | counter | messages | replaced by a newer one in a last-value queue, or of the same topic
     where the newest of each is retained
    total_deleted_messages, purged_messages | counter | messages | deleted one by one, and by a purge
    ttl_expired_discard, max_redelivery_exceeded_discard, rejected_discard | counter | messages | dead and deleted:
     there is no dead message queue for them
    ttl_expired_to_dmq, max_redelivery_exceeded_to_dmq, rejected_to_dmq | counter | messages | moved to the dead
     message queue
    ttl_expired_to_dmq_failures, max_redelivery_exceeded_to_dmq_failures, rejected_to_dmq_failures | counter |
     attempts | the dead message queue refused a message; it is tried again
    messages_unreadable | counter | messages | put aside because their block on disk is damaged; they are tried
     again after a restart
    high_water_mark_messages, high_water_mark_bytes | gauge | messages, bytes | the most it ever held
    high_water_mark_mb | | MB | the same, as the controller shows it
    oldest_position | gauge | position | of its oldest message; 0: it is empty
    newest_position | gauge | position | of the message that came last, which may be gone
    oldest_stored_ms | gauge | wall time in ms | when its oldest message was spooled; 0: it is empty
    segments | gauge | number | pieces of the index
    consumer_flows, browser_flows | gauge | number | flows at the homes
    reader_group | | | the reader group that has leased it; empty: none
    leased_messages, lease_lost_messages | gauge | number | what the reader group that has leased it has planned and
     not acknowledged; planned messages that were deleted otherwise
    oldest_lease_ms, longest_lease_s | gauge | wall time in ms, s | when it was leased; how long the lease lasts
     after its last use; 0: it is not leased
    """,
)
