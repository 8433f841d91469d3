"""Which directory of an archive a message goes into: its day, then the leading levels of its topic.

    topic            levels  directory
    orders/eu/7      1       date=2026-03-01/topic_1=orders
    orders/eu/7      2       date=2026-03-01/topic_1=orders/topic_2=eu
    orders           2       date=2026-03-01/topic_1=orders/topic_2=~-        there is no second level
    /x               1       date=2026-03-01/topic_1=~                        the first level is empty
    a b/ö*           2       date=2026-03-01/topic_1=a~20b/topic_2=~C3~B6~2A

A level is written so that every file system takes it and Spark leaves it alone: letters, digits and `._-` stand for
themselves, every other byte of its UTF-8 is `~` and two hexadecimal digits. `level_of` turns a name back. What is
longer than a name may be is cut, with a digest behind it that keeps it apart from others; then only the column `topic`
has the whole level.

The number of directories by topic is bounded: messages of topics beyond that are under `~+` on every level.
`directory_of` is the rule; `columns_for` says the same in Spark's words, and a test compares them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column

DATE: Final = "date"
#: What the names of files say of who archived their messages: the id of a checkpoint, which is of one queue as long as
#: that lives. For Java and Python alike.
JOB: Final = "^(?:batch-|compaction-[0-9a-f]+-[0-9]+-)([0-9a-f]{8})[-.]"
_DAY_S: Final = 86_400
#: What our jobs keep in an archive beside the messages; readers pass over it because of its first letter.
PRIVATE: Final = "_angarium"
#: Topics with fewer levels than there are directories.
ABSENT: Final = "~-"
EMPTY: Final = "~"
#: Everything beyond the bound of directories.
OTHERS: Final = "~+"
#: Of a directory's name without `topic_N=`; file systems take 255 bytes.
NAME_MAX: Final = 160
#: What is kept of a longer one before the digest.
_KEPT: Final = 120
_DIGEST: Final = 16
#: A path has up to 4096 bytes.
LEVELS_MAX: Final = 8
#: A day with more directories is slow to list, and has more small files than compaction can help.
DIRECTORIES_MAX: Final = 1000


def name_of(level: str | None) -> str:
    """Give the directory's name for a level of a topic, None for one that the topic does not have."""
    if level is None:
        return ABSENT
    if not level:
        return EMPTY
    # urllib leaves `~` alone, and it is what we escape with.
    name = quote(level, safe="").replace("~", "%7E").replace("%", "~")
    if name.startswith("_"):
        name = f"~5F{name[1:]}"
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(level.encode()).hexdigest()[:_DIGEST]
    return f"{name[:_KEPT]}~~{digest}"


def level_of(name: str) -> str | None:
    """Give the level that a directory's name stands for, None if it stands for none.

    Raises:
        ValueError: the name does not have the whole level: it was cut, or stands for several.
    """
    if name == ABSENT:
        return None
    if name == EMPTY:
        return ""
    if name == OTHERS or "~~" in name:
        message = f"{name} stands for no single level; the column topic has it"
        raise ValueError(message)
    return unquote(name.replace("~", "%"))


def level_columns(levels: int) -> list[str]:
    """Give the names of the columns that are directories by topic level."""
    return [f"topic_{number}" for number in range(1, levels + 1)]


def topic_directory(topic: str, levels: int) -> str:
    """Give the part of the directory that the topic decides."""
    parts: list[str | None] = list(topic.split("/"))
    parts += [None] * levels
    names = (name_of(part) for part in parts[:levels])
    return "/".join(f"{column}={name}" for column, name in zip(level_columns(levels), names, strict=True))


def others_directory(levels: int) -> str:
    """Give the same for topics beyond the bound of directories."""
    return "/".join(f"{column}={OTHERS}" for column in level_columns(levels))


def within_bound(directories: Iterable[str], known: Sequence[str], bound: int, levels: int) -> dict[str, str]:
    """Say where the files of some directories belong, so that there are no more than a bound.

    Args:
        directories: by topic, without date, as `topic_1=a/topic_2=b`.
        known: those that the archive has.
        bound: how many it may have; `others_directory` does not count.
        levels: of topics that are directories.
    """
    others = others_directory(levels)
    kept = {*known, others}
    room = bound - len(set(known) - {others})
    found = {}
    for directory in sorted(set(directories)):
        if directory not in kept and room > 0:
            kept.add(directory)
            room -= 1
        found[directory] = directory if directory in kept else others
    return found


def columns_for(levels: int) -> dict[str, Column]:
    """Give the columns by which Spark is to partition: `date` and `topic_N`."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    topic = F.split(F.col("topic"), "/", -1)
    # A day counted from 1970, since what formats a time does so in the zone of the session.
    day = F.date_from_unix_date(F.floor(F.unix_seconds("spooled_timestamp") / F.lit(_DAY_S)).cast("int"))
    found = {DATE: F.coalesce(day.cast("string"), F.lit(ABSENT))}
    for at, column in enumerate(level_columns(levels)):
        found[column] = _name_column(F.get(topic, F.lit(at)))
    return found


def _name_column(level: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    name = F.url_encode(level)
    for text, replacement in (("*", "%2A"), ("+", "%20"), ("%", "~")):
        name = F.replace(name, F.lit(text), F.lit(replacement))
    name = F.regexp_replace(name, "^_", "~5F")
    cut = F.concat(
        F.substring(name, 1, _KEPT),
        F.lit("~~"),
        F.substring(F.sha2(F.encode(level, "UTF-8"), 256), 1, _DIGEST),
    )
    return (
        F.when(level.isNull(), F.lit(ABSENT))
        .when(level == F.lit(""), F.lit(EMPTY))
        .when(F.length(name) > F.lit(NAME_MAX), cut)
        .otherwise(name)
    )
