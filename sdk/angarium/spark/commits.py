"""What the driver does with the stages of a batch: commit them in one step, or drop them.

A task's commit message names its stage. The node keeps, per username and *sink*, the last batch that was committed, so
that a batch which Spark runs again is recognised and its new stages are dropped. What identifies a sink must come back
after a restart from the checkpoint and belong to no other query: the id that Spark gives a streaming query is made with
its checkpoint and kept there, and tasks are told it. So it is in the name of the sink, behind what `sinkId` says.
Neither a path nor a name that a user gives would do alone: who starts over with it begins with batch 0 again, which was
committed, and would publish nothing.

A data frame that is written as a whole has no batches: its stages are committed together, and a write that is begun
again is another one, unless `sinkId` and `batchId` say which one it is, as in a `foreachBatch`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from angarium import errors
from angarium.spark import options
from angarium.spark.connecting import open_client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.spark.options import Settings

#: What the sinks of streaming queries are called before the id of the query, unless `sinkId` says something else.
QUERY_PREFIX: Final = "spark"
#: Between two tries to reach a node that is starting.
_RETRY_INTERVAL_S: Final = 0.5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int
    #: Where the rows are until the driver commits them; None if they are out, or there are none.
    stage: str | None = None
    #: The id of the streaming query, if Spark says.
    query: str | None = None


class Commitment(NamedTuple):
    """What is committed in one step."""

    #: In the order of their tasks, which is the order of their rows.
    stages: tuple[str, ...]
    #: Who commits, and which batch; None for a write that is no part of a sequence.
    sink: str | None = None
    batch: int | None = None


def write_commitment(settings: Settings, messages: Sequence[Any]) -> Commitment | None:
    """Give what to commit for a data frame; None if there is nothing.

    Raises:
        InvalidRequestError: one of `sinkId` and `batchId` is given without the other (INVALID_ARGUMENT).
    """
    check_identity(settings)
    stages = stages_of(messages)
    if not stages:
        return None
    if settings["sinkId"] is None:
        return Commitment(stages)
    query = _query_of(messages)
    return Commitment(stages, _sink(settings["sinkId"], query), settings["batchId"])


def stream_commitment(settings: Settings, messages: Sequence[Any], batch: int) -> Commitment | None:
    """Give what to commit for a batch of a streaming query; None if there is nothing.

    Raises:
        InvalidRequestError: there is no `sinkId`, and Spark told the tasks no id of the query (INVALID_ARGUMENT).
    """
    stages = stages_of(messages)
    if not stages:
        return None
    query = _query_of(messages)
    if query is None and settings["sinkId"] is None:
        why = "Spark tells no id of the query here: give a name that no other checkpoint has"
        raise options.invalid("sinkId", why)
    return Commitment(stages, _sink(settings["sinkId"] or QUERY_PREFIX, query), batch)


def _query_of(messages: Sequence[Any]) -> str | None:
    """Give the query that the tasks belong to; None if Spark did not say."""
    queries = {message.query for message in messages if message is not None and message.stage}
    return queries.pop() if len(queries) == 1 else None


def _sink(name: str, query: str | None) -> str:
    return name if query is None else f"{name}/{query}"


def check_identity(settings: Settings) -> None:
    """Check that a data frame that is part of a sequence says of which, and where in it.

    Raises:
        InvalidRequestError: it says only one of the two (INVALID_ARGUMENT).
    """
    if (settings["sinkId"] is None) != (settings["batchId"] is None):
        missing = "sinkId" if settings["sinkId"] is None else "batchId"
        raise options.invalid(missing, "sinkId and batchId of a data frame are given together")


def stages_of(messages: Sequence[Any]) -> tuple[str, ...]:
    """Give the stages that tasks tell of; a task that failed has no message."""
    return tuple(message.stage for message in messages if message is not None and message.stage)


def commit(settings: Settings, commitment: Commitment, connect: Callable[..., Any] = open_client) -> bool:
    """Commit stages, whatever becomes of connections meanwhile; False if the batch was committed before.

    Committing again is harmless, so whatever may pass by itself is tried again for `retrySeconds`.

    Raises:
        AngariumError: the node refuses, or cannot be reached. What became of the stages is unknown in the second case;
            who runs the batch again publishes nothing twice.
    """
    deadline = time.monotonic() + settings["retrySeconds"]
    while True:
        try:
            with connect(settings) as client:
                committed: bool = client.commit_stages(commitment.stages, commitment.sink, commitment.batch)
                return committed
        except errors.AngariumError as error:
            if error.code not in errors.PASSING or time.monotonic() >= deadline:
                raise
            _logger.warning("commit of %d stages is tried again: %s", len(commitment.stages), error)
        time.sleep(_RETRY_INTERVAL_S)


def drop(
    settings: Settings, stages: Sequence[str], connect: Callable[..., Any] = open_client
) -> errors.AngariumError | None:
    """Drop stages that nobody will commit; give what went wrong, which need not be an error: they age out anyhow."""
    if not stages:
        return None
    try:
        with connect(settings) as client:
            client.abort_stages(stages)
    except errors.AngariumError as error:
        _logger.warning("%d stages are left to age out: %s", len(stages), error)
        return error
    return None
