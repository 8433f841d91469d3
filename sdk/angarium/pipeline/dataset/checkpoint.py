"""What Spark's checkpoint of a stream says: which range was planned, and which batch is done.

Spark tells a source that a batch is done only when it plans the next one, so a query that has ended owes the source its
last one. The logs of the checkpoint have it: `offsets/N` is written before batch N runs and has the end of its range,
`commits/N` when it is done. Spark does not wait until they are on disk, so a power cut may take back what it knew of
a batch whose messages are in the archive and deleted at the node.

    v1
    {"batchWatermarkMs":0,...}
    {"...":...}              the end of the range of each source, or `-` for one that has none
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from angarium import errors

if TYPE_CHECKING:
    from angarium.pipeline.dataset.files import Files

#: What Spark writes when a batch without watermarks and state is done.
_DONE_NOTE = 'v1\n{"nextBatchWatermarkMs":0}'
#: Version, metadata, then one line for each source.
_HEAD_LINES = 2
_NO_OFFSET = "-"


class Progress(NamedTuple):
    """How far a query is."""

    #: The newest batch that is done; None if none is.
    done: int | None
    #: The newest batch that was planned; None if none was.
    planned: int | None
    #: Where the batch before it ends, as its source wrote it; None if there is none, or it is not known any more.
    start: str | None
    #: Where the newest batch that is done ends; None if none is, or it has no offset.
    end: str | None

    @property
    def is_clean(self) -> bool:
        """Whether nothing is planned that is not done: no range has to be read again."""
        return self.done == self.planned


def progress_of(files: Files, checkpoint: str) -> Progress:
    """Read how far the query of a checkpoint with one source is; a checkpoint that is not there is at its start.

    Raises:
        UnavailableError: it cannot be understood (SPARK_FAILED).
    """
    planned = _newest(files, f"{checkpoint}/offsets")
    done = _newest(files, f"{checkpoint}/commits")
    if done is None:
        return Progress(None, planned, None, None)
    return Progress(done, planned, _end(files, checkpoint, done - 1), _end(files, checkpoint, done))


def parse_offset(text: str, where: str) -> str | None:
    """Give the end of a batch from the file that Spark keeps of it, for a query with one source.

    Raises:
        UnavailableError: it is of another form (SPARK_FAILED).
    """
    lines = text.splitlines()
    if len(lines) != _HEAD_LINES + 1 or lines[0] != "v1":
        raise errors.error_for(errors.SPARK_FAILED, f"{where} is not of the form that is known here")
    return None if lines[-1] == _NO_OFFSET else lines[-1]


def range_file(checkpoint: str, batch: int) -> str:
    """Give the file that has the end of the range of a batch."""
    return f"{checkpoint}/offsets/{batch}"


def note_done(files: Files, checkpoint: str, batch: int) -> None:
    """See to it that Spark knows of a batch that it is done: a power cut may have taken its note, or left it empty."""
    place = f"{checkpoint}/commits/{batch}"
    if not files.exists(place) or _is_torn(files, place):
        _remove(files, place)
        files.create(place, _DONE_NOTE)


def drop_torn_range(files: Files, checkpoint: str, batch: int) -> None:
    """Let a batch that was planned and did not run be planned again if a power cut left its range empty."""
    place = range_file(checkpoint, batch)
    if files.exists(place) and _is_torn(files, place):
        _remove(files, place)


def newest_planned(files: Files, checkpoint: str) -> int | None:
    """Give the newest batch that was planned, None if none was."""
    return _newest(files, f"{checkpoint}/offsets")


def _is_torn(files: Files, place: str) -> bool:
    return not files.read(place).strip("\0")


def _remove(files: Files, place: str) -> None:
    """Remove a file and Hadoop's check sum of it, which would be taken for that of the next."""
    folder, _, name = place.rpartition("/")
    files.remove(place)
    files.remove(f"{folder}/.{name}.crc")


def _end(files: Files, checkpoint: str, batch: int) -> str | None:
    place = range_file(checkpoint, batch)
    return parse_offset(files.read(place), files.url(place)) if files.exists(place) else None


def _newest(files: Files, folder: str) -> int | None:
    numbers = [int(entry.name) for entry in files.entries(folder) if entry.name.isdecimal()]
    return max(numbers, default=None)
