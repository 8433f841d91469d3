"""Turns what Spark fails with, which has a hundred lines of other programs' stacks, into one of our errors.

An error of ours that was raised in a Python worker, as by the source, comes back as text inside; it is found there.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from angarium import errors
from angarium.pipeline.session import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS: Final = re.compile(r"error (\d{5}): (.+)")
_CALLING: Final = "An error occurred while calling "
_ADVICE: Final = re.compile(r"(.*) \(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*$")


def clear_failure(error: Exception) -> Exception:
    """Give the error to raise for what a job failed with: one of ours, or the very one if it is no failure of Spark's.

    An error that Spark has wrapped is found by its text; anything else of Spark's is SPARK_FAILED with its first line.
    """
    if isinstance(error, errors.AngariumError):
        return error
    package = type(error).__module__.partition(".")[0]
    if package not in ("pyspark", "py4j"):
        return error
    found = [one for one in _OURS.finditer(str(error)) if int(one.group(1)) in errors.ERRORS]
    if not found:
        return errors.error_for(errors.SPARK_FAILED, _essence(error))
    code = int(found[-1].group(1))
    return errors.error_for(code, *_parts(found[-1].group(2).strip(), errors.ERRORS[code].text))


def _essence(error: Exception) -> str:
    """Give the line that says what happened; py4j puts one before it that says where, and a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(_CALLING)]
    return said[0].removeprefix(": ") if said else first_line(error)


def _parts(text: str, title: str) -> tuple[str, str]:
    """Take apart "TITLE: DETAIL (ADVICE)"; what is not of that form is all detail."""
    matched = _ADVICE.match(text)
    what, advice = matched.groups() if matched else (text, "")
    return what.removeprefix(title).removeprefix(": "), advice


@contextlib.contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn what Spark raises in the block into one of our errors; `what` is a path, or what is read.

    Raises:
        NotFoundError: a path is not there, or there is no Parquet (ARCHIVE_NOT_FOUND).
        AngariumError: anything else that Spark says (SPARK_FAILED), or an error of ours that it wrapped.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        if condition == "PATH_NOT_FOUND":
            raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{what} does not exist") from None
        if condition == "UNABLE_TO_INFER_SCHEMA":
            raise errors.error_for(errors.ARCHIVE_NOT_FOUND, f"{what} holds no messages") from None
        raise clear_failure(error) from None
