"""The calls of a client that are about guaranteed messages and endpoints.

`GuaranteedMessaging` is the half of `angarium.Client` that has them; they do their work with `ProducersAndFlows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from angarium.client.connection.opening import Opening
from angarium.client.consuming.flow import Flow
from angarium.client.consuming.flow_options import (
    FLOW_WINDOW,
    FLOW_WINDOW_BYTES,
    QUEUE,
    TOPIC_ENDPOINT,
    FlowOptions,
    RangeOptions,
    consume_options,
)
from angarium.client.consuming.range_reader import RANGE_WINDOW, RANGE_WINDOW_BYTES, RangeReader
from angarium.client.consuming.reader_group import LEASE_S
from angarium.client.protocol import provisioning
from angarium.client.protocol.answers import PRODUCER_WINDOW_MAX, STAGE_WINDOW_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from angarium.client.consuming.attributes import (
        AckPolicy,
        EndpointAttributes,
        EndpointKind,
        QueueAttributes,
    )
    from angarium.client.consuming.flow_options import MessageCallback
    from angarium.client.consuming.reader_group import EndpointPositions, ReaderGroup
    from angarium.client.producers_and_flows import ProducersAndFlows
    from angarium.client.protocol.messages import GuaranteedBatch
    from angarium.client.protocol.provisioning import Send
    from angarium.client.publishing.producer import AckCallback, Producer, Stage


class ConsumeArguments(TypedDict, total=False):
    """The arguments of `Client.consume` besides the queue and the callback, which explains each."""

    kind: EndpointKind
    window: int
    window_bytes: int
    ack: AckPolicy
    ack_threshold_percent: int
    ack_delay_ms: int
    selector: str | None
    no_local: bool
    topic: str | None
    temporary: bool
    subscriptions: str | Sequence[str]
    attributes: Mapping[str, Any] | None
    max_unacked: int | None
    max_messages: int | None
    concurrency: int
    on_active: Callable[[bool], None] | None
    timeout_s: float


class GuaranteedMessaging:
    """What a client does with guaranteed messages and endpoints."""

    _guaranteed: ProducersAndFlows
    _timeout_s: float

    def producer(
        self,
        name: str = "",
        window: int = PRODUCER_WINDOW_MAX,
        on_ack: AckCallback | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Opening[Producer]:
        """Open a producer of guaranteed messages: `async with client.producer() as producer`, or await it.

        Opening a name that is open elsewhere ends the producer there. It stays open over reconnects, and what
        is not acknowledged is sent again with the same sequences: each message is stored once.

        Args:
            name: of the producer, per username; the node remembers its sequences. Empty for one that the node
                makes up, which nobody opens again.
            window: messages that may be unacknowledged, 1 to 255.
            on_ack: called with each `Acknowledgement`; refusals are then told there, and not by `flush`.
            timeout_s: how long to wait for the node, by default the `timeout_s` of `connect`.

        Raises:
            InvalidRequestError: an argument is illegal.
            ForbiddenError: the client profile does not allow it (GUARANTEED_SEND_DENIED).
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses, or is not there.
        """
        return Opening(self._guaranteed.producer(name, window, on_ack, self._within(timeout_s)))

    def stage(self, *, window: int = STAGE_WINDOW_MAX, timeout_s: float | None = None) -> Opening[Stage]:
        """Open a stage: messages that are stored, and belong to nobody until somebody commits them.

        Close it when all messages are given; then whoever has this username commits it by its `id`.

        Args:
            window: messages that may be unacknowledged, 1 to 4,096.
            timeout_s: how long to wait for the node, by default the `timeout_s` of `connect`.

        Raises:
            AngariumError: as for `producer`; or there are too many stages (TOO_MANY_FLOWS).
        """
        return Opening(self._guaranteed.stage(window, self._within(timeout_s)))

    async def commit_stages(
        self,
        stages: Sequence[str],
        sink: str | None = None,
        batch: int | None = None,
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Publish what was staged: all of it, once; it is in its endpoints when this returns.

        With a sink each batch is published once, whoever commits it how often, as long as the numbers of batches rise:
        of several commits of one batch the first publishes its stages, and the others drop theirs. Without one a commit
        may be repeated while the node remembers the stages, for hours at least.

        Should the answer be lost (TIMEOUT, NOT_CONNECTED) it may have been done: commit again.

        Args:
            stages: their ids; what they hold is published stage by stage in this order, in each partition of each
                endpoint.
            sink: who commits, per username: a name of 1 to 160 bytes.
            batch: the number of what is committed, from 0; with a sink only.
            timeout_s: how long to wait for the node, by default the `timeout_s` of `connect`.

        Returns:
            Whether it was this commit; False if that batch, a later one, or all the stages were committed before.

        Raises:
            NotFoundError: a stage was aborted, or is not there any more; nothing is published (UNKNOWN_STAGE).
            InvalidRequestError: an argument is illegal.
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses, or is not there.
        """
        answer = await self._ask(provisioning.commit_stages(stages, sink, batch), timeout_s)
        return bool(answer.committed)

    async def abort_stages(self, stages: Sequence[str], *, timeout_s: float | None = None) -> None:
        """Drop what was staged. Stages that are committed, or not there, stay as they are.

        Raises:
            AngariumError: the node refuses, or is not there.
        """
        await self._ask(provisioning.abort_stages(stages), timeout_s)

    def consume(
        self, queue: str, callback: MessageCallback | None = None, **options: Unpack[ConsumeArguments]
    ) -> Opening[Flow]:
        """Bind to a queue or topic endpoint: `async with client.consume("orders") as flow`, or await it for the flow.

        Args:
            queue: the name of the endpoint.
            callback: called with each message instead of reading the flow; awaited if it is `async def`. With
                `ack="auto"` a message whose callback raised is failed.
            **options: as follows.
            kind: `queue` (default) or `topic-endpoint`.
            window: messages that the node may send ahead of the application, 255 by default.
            window_bytes: bytes that it may send ahead, 4 MiB by default.
            ack: `auto` (default): a message is accepted when the next one is asked for, or its callback returned;
                `manual`: the application settles every message.
            ack_threshold_percent: when so much of a window was accepted the node is told, 60 by default.
            ack_delay_ms: ... and so long after a message was accepted at the latest, 10 by default.
            selector: get only messages that this condition holds for.
            no_local: do not get what this client itself published: it stays for others.
            topic: the topic that a topic endpoint attracts.
            temporary: make the endpoint if it is not there; it goes with this client.
            subscriptions: of a temporary queue: the filter, or filters, whose messages it attracts.
            attributes: of a temporary endpoint that is made.
            max_unacked: messages that may be unsettled, to go below the endpoint's own limit.
            concurrency: calls of an `async def` callback that may run at once, 1 by default; they begin in the order
                of the messages.
            max_messages: ask the node for so many in all, and no more; who wants a few leaves the others alone, and a
                loop over the flow ends with the last of them.
            on_active: called when the flow becomes active, or stands by.
            timeout_s: how long to wait for the node, by default the `timeout_s` of `connect`.

        Raises:
            InvalidRequestError: an argument is illegal, or the selector is (INVALID_SELECTOR).
            ForbiddenError: the client profile or the endpoint's permission denies it.
            NotFoundError: there is no such endpoint (UNKNOWN_ENDPOINT).
            UnavailableError: it is switched off, or it has too many consumers.
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses, or is not there.
        """
        options.setdefault("timeout_s", self._timeout_s)
        return Opening(self._flow(consume_options(queue, callback, options)))

    def browse(
        self,
        queue: str,
        selector: str | None = None,
        *,
        kind: EndpointKind = QUEUE,
        window: int = FLOW_WINDOW,
        window_bytes: int = FLOW_WINDOW_BYTES,
        max_messages: int | None = None,
        timeout_s: float | None = None,
    ) -> Opening[Flow]:
        """Look at the messages of a queue or topic endpoint, the oldest first; they stay where they are.

        A browser without `max_messages` never ends by itself: after the newest message it waits for the next one. After
        a lost connection it goes on behind what has come.

        Raises:
            AngariumError: as for `consume`.
        """
        options = FlowOptions(
            name=queue,
            kind=kind,
            browse=True,
            selector=selector,
            window=window,
            window_bytes=window_bytes,
            max_messages=max_messages,
            timeout_s=self._within(timeout_s),
        )
        return Opening(self._flow(options))

    async def _flow(self, options: FlowOptions) -> Flow:
        return Flow(await self._guaranteed.bind(options))

    async def positions(self, queue: str, *, kind: EndpointKind = QUEUE) -> EndpointPositions:
        """Give which positions a queue or topic endpoint has now; it needs no lease, and takes none.

        Raises:
            AngariumError: as for `browse`.
        """
        return await self._guaranteed.positions(queue, kind, self._timeout_s)

    async def browse_range(
        self,
        queue: str,
        partition: int,
        start: int,
        end: int,
        *,
        selector: str | None = None,
        kind: EndpointKind = QUEUE,
        timeout_s: float | None = None,
    ) -> AsyncIterator[GuaranteedBatch]:
        """Look at the messages from a position to before another one, in order and in batches; they stay.

        It ends by itself when nothing more of the range is there, and goes on where it was when the connection was
        lost meanwhile. What others consume before it comes by is not in it.

        Raises:
            InvalidRequestError: there is no such partition (INVALID_ARGUMENT), or the selector is none.
            AngariumError: as for `browse`.
        """
        reader = await self._range_reader(
            queue, "", partition, start, end, selector=selector, kind=kind, timeout_s=timeout_s
        )
        async for batch in _batches(reader):
            yield batch

    # Reader groups.

    def reader_group(
        self, queue: str, group: str, *, lease_s: float = LEASE_S, timeout_s: float | None = None
    ) -> Opening[ReaderGroup]:
        """Lease all partitions of a durable queue for a reader group, or go on with its lease.

        Other consumers stand by until the group releases the queue or does not use it for `lease_s`; browsers go
        on. What consumers had out they may settle for a few seconds.

        Args:
            queue: its name.
            group: 1 to 200 bytes that can be printed; who gives the same name has the same lease.
            lease_s: the lease ends when nobody opens, plans, reads or acknowledges for so long; 1 s to 30 days.
            timeout_s: how long to wait for the node, here and in calls of the group; by default that of `connect`.

        Raises:
            ConflictError: another group has the queue (ENDPOINT_LEASED).
            InvalidRequestError: the name or `lease_s` is illegal (INVALID_ARGUMENT), or the queue is temporary
                (INVALID_DURABILITY).
            ForbiddenError: the permission of the queue or the client profile denies it.
            NotFoundError: there is no such queue (UNKNOWN_ENDPOINT).
            UnavailableError: it is switched off.
            TimeoutExpiredError: the node did not answer in time (TIMEOUT).
            AngariumError: the node refuses, or is not there.
        """
        return Opening(self._guaranteed.reader_group(queue, group, lease_s, self._within(timeout_s)))

    async def read_range(
        self,
        queue: str,
        group: str,
        partition: int,
        start: int,
        end: int,
        *,
        window: int = RANGE_WINDOW,
        window_bytes: int = RANGE_WINDOW_BYTES,
        timeout_s: float | None = None,
    ) -> AsyncIterator[GuaranteedBatch]:
        """Give the messages of a planned range in order, in batches; any number of times until it is acknowledged.

        It ends by itself when all were given, and goes on where it was when the connection was lost meanwhile.

        Raises:
            ConflictError: the group does not have the lease (LEASE_LOST).
            InvalidRequestError: the range is not planned, or acknowledged (INVALID_ARGUMENT).
            AngariumError: the node refuses, or is not there.
        """
        reader = await self._range_reader(
            queue, group, partition, start, end, window=window, window_bytes=window_bytes, timeout_s=timeout_s
        )
        async for batch in _batches(reader):
            yield batch

    async def _range_reader(
        self,
        queue: str,
        group: str,
        partition: int,
        start: int,
        end: int,
        *,
        selector: str | None = None,
        kind: EndpointKind = QUEUE,
        window: int = RANGE_WINDOW,
        window_bytes: int = RANGE_WINDOW_BYTES,
        timeout_s: float | None = None,
    ) -> RangeReader:
        """Begin to read a range, for who reads it step by step: `read` gives what has come, then `close`.

        Without a group the range is browsed.

        Raises:
            AngariumError: as for `read_range` and `browse_range`.
        """
        options = FlowOptions(
            name=queue,
            kind=kind,
            browse=True,
            selector=selector,
            range=RangeOptions(group, partition, start, end),
            window=window,
            window_bytes=window_bytes,
            timeout_s=self._within(timeout_s),
        )
        return await self._guaranteed.range_reader(options)

    # Endpoints.

    async def create_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        ignore_exists: bool = False,
        subscriptions: str | Sequence[str] = (),
        **attributes: Unpack[QueueAttributes],
    ) -> bool:
        """Create a queue, and let it attract what matches the subscriptions; tell whether it is new.

        Consumers share its messages, each message goes to one of them: a durable queue that a client creates is
        `non-exclusive`, unless `access_type="exclusive"` or the operators' template says otherwise: then one consumer
        is active, and the others stand by. A temporary queue is always exclusive.

        Args:
            name: 1 to 200 bytes.
            durable: else it is a temporary one, which goes with this client; `consume` makes them, too.
            ignore_exists: it is no error if there is one of that name with these attributes.
            subscriptions: a filter, or several; `!a/b` keeps out what it matches. A queue that is there gets those it
                lacks.
            **attributes: those of queues, as `permission="consume"`; for the others the operators' template, or the
                default of the attribute.

        Raises:
            ForbiddenError: the client profile does not allow it (ENDPOINT_CREATE_DENIED).
            ConflictError: there is one of that name (OBJECT_EXISTS).
            UnauthorizedError: there is one with other attributes (ENDPOINT_PROPERTY_MISMATCH).
            InvalidRequestError: name, attribute or filter are illegal.
            AngariumError: the node refuses, or is not there.
        """
        first, *others = [*provisioning.portions(provisioning.filters_of(subscriptions))] or [()]
        # In one step: with a filter that is refused there is no queue.
        all_of_it = {**attributes, "subscriptions": list(first)} if first else attributes
        send = provisioning.create(
            QUEUE, name, durable=durable, ignore_exists=ignore_exists, attributes=all_of_it
        )
        created = bool((await self._ask(send)).created)
        for some in others if created else (first, *others):
            await self._change_subscriptions("subscribe", name, some)
        return created

    async def create_topic_endpoint(
        self,
        name: str,
        *,
        durable: bool = True,
        ignore_exists: bool = False,
        **attributes: Unpack[EndpointAttributes],
    ) -> bool:
        """Create a topic endpoint; tell whether it is new. It gets its topic when a consumer binds.

        As with `create_queue`, consumers share its messages unless `access_type="exclusive"` is given.

        Raises:
            AngariumError: as for `create_queue`.
        """
        send = provisioning.create(
            TOPIC_ENDPOINT, name, durable=durable, ignore_exists=ignore_exists, attributes=attributes
        )
        return bool((await self._ask(send)).created)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with all its messages.

        Raises:
            NotFoundError: there is none (UNKNOWN_ENDPOINT).
            ForbiddenError: the permission denies it, or an operator created it (OPERATOR_ENDPOINT).
            AngariumError: the node refuses, or is not there.
        """
        await self._ask(provisioning.delete(QUEUE, name))

    async def delete_topic_endpoint(self, name: str) -> None:
        """Delete a topic endpoint with all its messages.

        Raises:
            AngariumError: as for `delete_queue`.
        """
        await self._ask(provisioning.delete(TOPIC_ENDPOINT, name))

    async def add_queue_subscription(self, queue: str, *filters: str) -> None:
        """Let a queue attract what matches filters; `!a/b` keeps out what it matches.

        It is in force when this returns. A filter that is there already is no error.

        Raises:
            ForbiddenError: the permission of the queue or an ACL denies it, or a filter is shared
                (SHARED_ON_ENDPOINT).
            AngariumError: a filter is refused, the first one is told; those before and after it may be in force.
        """
        await self._change_subscriptions("subscribe", queue, filters)

    async def remove_queue_subscription(self, queue: str, *filters: str) -> None:
        """Take subscriptions from a queue that clients gave it; what it holds stays.

        Raises:
            NotFoundError: the queue does not have one (SUBSCRIPTION_NOT_FOUND).
            ForbiddenError: the permission denies it, or an operator gave it (OPERATOR_ENDPOINT).
            AngariumError: as for `add_queue_subscription`.
        """
        await self._change_subscriptions("unsubscribe", queue, filters)

    async def show_queue(self, name: str) -> dict[str, Any]:
        """Give attributes and metrics of a queue, as far as this client may see them.

        Raises:
            NotFoundError: there is none (UNKNOWN_ENDPOINT).
            ForbiddenError: the permission denies it.
            AngariumError: the node refuses, or is not there.
        """
        shown: dict[str, Any] = await self._ask(provisioning.show(QUEUE, name))
        return shown

    async def show_topic_endpoint(self, name: str) -> dict[str, Any]:
        """Give attributes and metrics of a topic endpoint, as far as this client may see them.

        Raises:
            AngariumError: as for `show_queue`.
        """
        shown: dict[str, Any] = await self._ask(provisioning.show(TOPIC_ENDPOINT, name))
        return shown

    async def _change_subscriptions(self, verb: str, queue: str, filters: Sequence[str]) -> None:
        for some in provisioning.portions(provisioning.filters_of(filters)):
            results = await self._ask(provisioning.change_subscriptions(verb, queue, some))
            provisioning.check_results(results)

    async def _ask(self, send: Send, timeout_s: float | None = None) -> Any:
        self._guaranteed.check_open()
        return await self._guaranteed.operations.call(send, self._within(timeout_s))

    def _within(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


async def _batches(reader: RangeReader) -> AsyncIterator[GuaranteedBatch]:
    """Read a range to its end."""
    try:
        while batches := await reader.read():
            for batch in batches:
                yield batch
    finally:
        await reader.close()
