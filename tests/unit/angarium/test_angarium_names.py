"""What applications see of the SDK: the public names of its classes, written down, each with a docstring."""

from __future__ import annotations

import ast
import inspect
from typing import Final

import pytest

import angarium
from angarium import blocking
from angarium.blocking import flow as flow_threads
from angarium.blocking import producer as producer_threads
from angarium.blocking import reader_group as group_threads
from angarium.blocking import subscription as reading

CLIENT: Final = """
    abort_stages add_queue_subscription browse browse_range close closed commit_stages connected consume create_queue
    create_topic_endpoint delete_queue delete_topic_endpoint flush inbox max_message_bytes name node positions producer
    publish publish_many read_range reader_group remove_queue_subscription reply request retained
    retained_batches show_queue show_topic_endpoint stage stats subscribe subscribe_for unsubscribe_for url
"""
SUBSCRIPTION: Final = "batches buffered close deliver_always filters local_only receive stats"
FLOW: Final = """
    accept access_type active batches buffered close closed fail name partitions receive reject stats topic
"""
PRODUCER: Final = """
    close closed flush last_sequence name publish publish_many send stats unacknowledged window
"""
GROUP: Final = "acknowledge close continued count find_time partitions plan positions release"

#: Class -> its public names.
NAMES: Final[dict[type, str]] = {
    angarium.Client: CLIENT,
    blocking.Client: CLIENT,
    angarium.Subscription: SUBSCRIPTION,
    reading.Subscription: SUBSCRIPTION,
    angarium.Flow: FLOW,
    flow_threads.Flow: FLOW,
    angarium.Producer: PRODUCER + " error send_message",
    producer_threads.Producer: PRODUCER,
    angarium.Stage: PRODUCER + " error send_message id",
    producer_threads.Stage: PRODUCER + " id",
    angarium.ReaderGroup: GROUP,
    group_threads.ReaderGroup: GROUP + " endpoint_id name node_id queue",
}


@pytest.mark.parametrize("kind", NAMES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_a_class_shows_what_applications_use_and_nothing_else(kind: type) -> None:
    public = [name for name in dir(kind) if not name.startswith("_")]
    assert public == sorted(NAMES[kind].split())
    assert [name for name in public if not inspect.getdoc(getattr(kind, name))] == []


def test_what_is_imported_on_demand_is_what_type_checkers_are_told_of() -> None:
    (found,) = (one for one in ast.parse(inspect.getsource(angarium)).body if isinstance(one, ast.If))
    told = {name.name: part.module for part in found.body for name in part.names}  # type: ignore[attr-defined]
    called = found.orelse[0].value  # type: ignore[attr-defined]
    assert ast.literal_eval(called.args[1]) == told
    assert set(told) < set(angarium.__all__) <= set(dir(angarium))


def test_a_name_that_is_not_there_is_told_as_by_every_module() -> None:
    with pytest.raises(AttributeError, match="module 'angarium' has no attribute 'Cleint'"):
        angarium.Cleint  # type: ignore[attr-defined]  # noqa: B018 - looked up, that is all
    with pytest.raises(ImportError):
        from angarium import Cleint  # type: ignore[attr-defined]  # noqa: F401


def test_everything_that_is_exported_has_a_docstring() -> None:
    classes = [getattr(angarium, name) for name in angarium.__all__ if name != "__version__"]
    assert [one for one in classes if not inspect.getdoc(one)] == []
