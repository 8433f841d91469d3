"""Opens the Spark session that a job runs in: here on this machine, or on any cluster.

It knows what our jobs want of every session (times in UTC, Parquet that others can read, a quiet log) and says in one
line what is not installed. What the Java process writes to stderr passes a filter, without the lines that every such
process writes: a user reads them as warnings about the job, and can do nothing about them. It knows no job.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
#: The oldest Java that the Spark which we ask for runs on.
JAVA_MIN: Final = 17
#: A Java that does not tell its version by then hangs.
JAVA_TIMEOUT_S: Final = 30.0

#: What each of our sessions has, unless the caller says otherwise.
SETTINGS: Final = {
    # A day of an archive is a day in UTC, wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is a type of 96 bits that most other readers have given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Of 4,096 messages of a few MB each, which is how many Spark reads at once by default, Java dies.
    "spark.sql.parquet.columnarReaderBatchSize": "16",
    # Our commands show progress themselves.
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
#: What a session on this machine has besides: nothing of it can be reached from another one.
LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The default of 200 is for clusters: on one machine each of them is a task that has next to nothing to do.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
}
#: The root logger keeps the level that Spark's gateway wants, or Spark says that it changes it.
LOG_PROPERTIES: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark %p %c{1}: %m%n
appender.console.filter.threshold.type = ThresholdFilter
appender.console.filter.threshold.level = error
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.writing.name = org.apache.spark.sql.execution.datasources
logger.writing.level = off
"""

_SPARK_EXTRA: Final = "pip install 'angarium[spark]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Where a job runs, and with which settings of Spark."""

    #: As `spark-submit --master`: local[*], spark://HOST:7077, yarn, k8s://https://HOST:PORT. None: what spark-submit
    #: was told, else all cores of this machine.
    master: str | None = None
    #: Settings of Spark by name; they win over ours.
    conf: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def open_session(name: str, settings: SparkSettings) -> Iterator[SparkSession]:
    """Start Spark, or take the session that there is; stop it at the end if it was started here.

    Args:
        name: of the application, as Spark shows it.
        settings: where it runs, and with what.

    Raises:
        UnavailableError: PySpark or Java is not there, or too old (NOT_INSTALLED); Spark does not start
            (SPARK_FAILED).
    """
    check_installed()
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession()
    if found is not None:
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="angarium-spark-") as folder:
        session = _start(name, settings, Path(folder))
        try:
            yield session
        finally:
            session.stop()


def _start(name: str, settings: SparkSettings, folder: Path) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"angarium {name}")
    for key, value in session_settings(settings, folder).items():
        builder = builder.config(key, value)
    try:
        with less_noise():
            return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        raise errors.error_for(errors.SPARK_FAILED, f"Spark did not start: {first_line(error)}") from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        raise errors.error_for(errors.SPARK_FAILED, f"Spark did not start: {first_line(error)}") from None


def session_settings(settings: SparkSettings, folder: Path) -> dict[str, str]:
    """Give all settings of a session; writes the settings of its log into a folder.

    Python workers on this machine are started with this interpreter, unless PYSPARK_PYTHON names another one.
    """
    found = dict(SETTINGS)
    master = settings.master
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = settings.conf.get("spark.master", DEFAULT_MASTER)
    if master is not None:
        found["spark.master"] = master
    if master is not None and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        properties = folder / "log4j2.properties"
        properties.write_text(LOG_PROPERTIES, encoding="utf-8")
        found |= LOCAL_SETTINGS
        found["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={properties}"
    return found | dict(settings.conf)


def check_installed() -> None:
    """Return if PySpark and a Java that it runs on are here.

    Raises:
        UnavailableError: they are not; the text says what to install (NOT_INSTALLED).
    """
    for package in ("pyspark", "pyarrow"):
        if util.find_spec(package) is None:
            raise errors.error_for(errors.NOT_INSTALLED, package, _SPARK_EXTRA)
    version = java_version()
    if version is None:
        raise errors.error_for(errors.NOT_INSTALLED, "Java", _java_advice())
    if version < JAVA_MIN:
        raise errors.error_for(errors.NOT_INSTALLED, f"Java {version} is too old for Spark", _java_advice())


def java_version() -> int | None:
    """Give the major version of the Java that Spark would start, or None if there is none that answers."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if command is None:
        return None
    try:
        answer = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> int | None:
    """Read the major version from what `java -version` prints.

    `openjdk version "17.0.15" 2025-04-15` is 17, `java version "1.8.0_391"` is 8; None for anything else.
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def _java_advice() -> str:
    return (
        f"install Java {JAVA_MIN} or later, for instance with 'apt-get install openjdk-17-jre-headless', "
        "or have JAVA_HOME name one"
    )


def first_line(error: BaseException) -> str:
    """Give the first line of an error's text that says something, or the error's name."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


_STDERR: Final = 2
#: How such lines begin: the JVM's about a module that Spark wants, and that of the library of the sketches.
_NOISE: Final = (
    b"WARNING: Using incubator modules:",
    b"Warning: Java versions > Java 11 can only operate in restricted mode",
)


@contextlib.contextmanager
def less_noise() -> Iterator[None]:
    """Have a process that is started inside write to stderr through a filter, for as long as it lives."""
    kept = os.dup(_STDERR)
    source, sink = os.pipe()
    os.dup2(sink, _STDERR)
    os.close(sink)
    threading.Thread(
        target=_forward, args=(source, os.dup(kept)), name="angarium-stderr", daemon=True
    ).start()
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _forward(source: int, target: int) -> None:
    """Copy lines until the last process that writes them has ended; a target that is gone must not block it."""
    with open(source, "rb") as lines, open(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                with contextlib.suppress(OSError):
                    out.write(line)
