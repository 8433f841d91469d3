"""Requests about endpoints, stages and what is retained: what they say, and what their answers mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.client.protocol import answers
from angarium.errors import invalid
from angarium.wire import malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from angarium.client.protocol.session import ClientSession

    Send = Callable[[ClientSession], int]


def create(
    kind: str, name: str, *, durable: bool, ignore_exists: bool, attributes: Mapping[str, Any]
) -> Send:
    """Ask for an endpoint; the answer is an `answers.EndpointCreated`."""
    arguments = {
        "kind": kind,
        "name": name,
        "durable": durable,
        "attributes": dict(attributes),
        "ignore_exists": ignore_exists,
    }
    return lambda session: session.guaranteed.ask("endpoint.create", arguments, answers.decode_created)


def delete(kind: str, name: str) -> Send:
    """Ask for the end of an endpoint and of all that it holds."""
    return lambda session: session.guaranteed.ask("endpoint.delete", {"kind": kind, "name": name})


def show(kind: str, name: str) -> Send:
    """Ask for attributes and metrics of an endpoint; the answer is a map."""
    arguments = {"kind": kind, "name": name}
    return lambda session: session.guaranteed.ask("endpoint.show", arguments, answers.decode_shown)


def read_retained(filter_text: str, after: str, upto: int, live: int) -> Send:
    """Ask for a page of what is retained; the answer is what `answers.decode_page` gives, and a list of one batch."""
    arguments = {"filter": filter_text, "after": after, "upto": upto, "live": live}
    return lambda session: session.guaranteed.ask("retained.read", arguments, answers.decode_page, batches=1)


def commit_stages(stages: Sequence[str], sink: str | None, batch: int | None) -> Send:
    """Ask for stages to be published; the answer is an `answers.StagesCommitted`.

    Raises:
        InvalidRequestError: ids, sink or batch are not what they should be (INVALID_ARGUMENT).
    """
    arguments: dict[str, Any] = {"stages": _ids(stages)}
    if sink is not None or batch is not None:
        if not isinstance(sink, str) or type(batch) is not int:
            detail = f"sink {sink!r:.200} and batch {batch!r:.50}: a text and a number, or neither"
            raise errors.invalid(detail)
        arguments |= {"sink": sink, "batch": batch}
    return lambda session: session.guaranteed.ask("stage.commit", arguments, answers.decode_committed)


def abort_stages(stages: Sequence[str]) -> Send:
    """Ask for stages to be dropped.

    Raises:
        InvalidRequestError: these are no ids (INVALID_ARGUMENT).
    """
    arguments = {"stages": _ids(stages)}
    return lambda session: session.guaranteed.ask("stage.abort", arguments)


def _ids(stages: Sequence[str]) -> list[str]:
    if isinstance(stages, str) or not all(isinstance(stage, str) for stage in stages):
        raise errors.invalid("stages are named by a list of their ids")
    return list(stages)


def change_subscriptions(verb: str, name: str, filters: Sequence[str]) -> Send:
    """Ask to `subscribe` or `unsubscribe` a queue; the answer is for `check_results`."""

    def decode(value: bytes) -> list[tuple[int, str] | None]:
        results = answers.decode_results(value)
        if len(results) != len(filters):
            raise malformed(f"{len(results)} answers for {len(filters)} filters")
        return results

    arguments = {"name": name, "filters": list(filters)}
    return lambda session: session.guaranteed.ask(f"endpoint.{verb}", arguments, decode)


def check_results(results: list[tuple[int, str] | None]) -> None:
    """Return if every filter was taken.

    Raises:
        AngariumError: of the first one that was not; those around it may have been.
    """
    for result in results:
        if result is not None:
            raise errors.error_for(*result)


def filters_of(subscriptions: str | Sequence[str]) -> Sequence[str]:
    """Give the filters that somebody named; a lone text is one, and not its characters, of which `>` is everything.

    Raises:
        InvalidRequestError: it is neither text nor a sequence of texts (INVALID_ARGUMENT).
    """
    if isinstance(subscriptions, str):
        return [subscriptions]
    if isinstance(subscriptions, Iterable):
        filters = list(subscriptions)
        if all(isinstance(one, str) for one in filters):
            return filters
    raise invalid(f"a filter is text, and filters are a list of them: {subscriptions!r:.80}")


def portions(filters: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cut filters into what one request holds."""
    for start in range(0, len(filters), wire.MAX_FILTERS_PER_REQUEST):
        yield filters[start : start + wire.MAX_FILTERS_PER_REQUEST]
