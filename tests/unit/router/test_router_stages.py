"""Stages at the router: a producer whose rows are kept apart, and decisions that are carried to all homes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.errors import AngariumError
from cluster.catalog.producers import Producers
from cluster.catalog.stages import Stages
from tests.unit.router.publish_rig import Publisher, PublishNode, answer_to, ask, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.ground.effects import AskController

pytestmark = pytest.mark.requirement("R221")

OWNER = ("default", "default")
#: Fields of STORE: relaxed, stage, release, drop.
RELAXED, STAGE, RELEASE, DROP = 2, 11, 12, 13


class StageNode(PublishNode):
    """A node whose controller has the real registry of stages."""

    def __init__(self, **options: Any) -> None:
        self.producers = Producers([], 50, 100, 7)
        self.stages = Stages([], [], self.producers, 3_600)
        #: Whether the controller answers.
        self.answers = True
        super().__init__(**options)

    def answer_ask(self, effect: AskController) -> None:
        if not effect.operation.startswith("stage."):
            super().answer_ask(effect)
            return
        self.asked.append((effect.operation, effect.arguments))
        try:
            if not self.answers:
                raise errors.error_for(errors.CONTROLLER_UNAVAILABLE)
            value = self.decide(effect.operation, effect.arguments)
        except AngariumError as error:
            self.router.controller_answered(effect.ticket, False, [error.code, error.detail], self.now)
        else:
            self.router.controller_answered(effect.ticket, True, value, self.now)

    def decide(self, operation: str, wish: dict[str, Any]) -> Any:
        stages = self.stages
        if operation == "stage.open":
            number, entries = stages.open(OWNER, wish["name"], resume=wish["resume"], now_s=1)
            value: Any = {"id": number}
        elif operation == "stage.settled":
            entries, value = stages.settled(wish["release"], wish["drop"], 1), None
        else:
            if operation == "stage.commit":
                decision = stages.commit(OWNER, wish.get("sink"), wish.get("batch"), wish["stages"], 1)
            elif operation == "stage.abort":
                decision = stages.abort(OWNER, wish["stages"], 1)
            else:
                decision = stages.held(wish["stages"])
            entries = decision.entries
            value = {"committed": decision.is_new, "release": decision.release, "drop": decision.drop}
        self.producers.take(entries)
        self.stages.take(entries)
        return value

    def settlements(self) -> list[list[list[int]]]:
        """Give what each home was told to release and to drop."""
        return [
            [*body[RELEASE : RELEASE + 2]]
            for index in self.homes
            for body in self.homes[index].stores
            if body[RELEASE] or body[DROP]
        ]


class StagePublisher(Publisher):
    """A client with one stage."""

    def request(self, operation: str, **arguments: Any) -> Any:
        if operation == "producer.open" and not arguments["resume"]:
            arguments["name"] = ""
        return super().request(
            operation, **arguments, **({"stage": True} if operation == "producer.open" else {})
        )


@pytest.fixture
def node() -> Iterator[StageNode]:
    node = StageNode(workers=2)
    node.queue("q", "a/>")
    yield node
    node.validate()


def stage(node: StageNode, *rows: Any) -> StagePublisher:
    publisher = StagePublisher(node, node.client())
    if rows:
        publisher.publish(*rows)
    return publisher


def test_rows_of_a_stage_are_stored_with_its_number_and_go_to_no_subscriber(node: StageNode) -> None:
    node.change("q", durability="relaxed")
    subscriber = node.client()
    subscriber.subscribe("a/>")
    publisher = stage(node, "a/b", "a/c")
    assert publisher.acked() == (2, [])
    (body,) = [body for body in node.home_of("q").stores if body[4]]
    assert (body[RELAXED], body[STAGE]) == (False, 50)
    assert subscriber.payloads() == []
    other = node.publisher("usual")
    other.publish("a/b")
    assert node.home_of("q").stores[-1][STAGE:] == [0, [], [], []]
    assert subscriber.payloads() == [b"x"]


def test_a_commit_is_answered_when_every_home_has_it_on_disk(node: StageNode) -> None:
    publisher = stage(node, "a/b")
    publisher.request("producer.close", producer=publisher.handle)
    node.hold()
    client = node.client()
    number = ask(client, "stage.commit", stages=[publisher.name], sink="s", batch=1)
    again = ask(client, "stage.commit", stages=[publisher.name], sink="s", batch=1)
    node.homes[0].commit()
    assert answer_to(client, number) is answer_to(client, again) is None
    node.homes[1].commit()
    assert answer_to(client, number) == (0, {"committed": True})
    node.commit()
    assert answer_to(client, again) == (0, {"committed": False})
    assert node.settlements() == [[[50], []]] * 2
    assert ("stage.settled", {"release": [50], "drop": []}) in node.asked
    assert len(node.stages) == 0


def test_a_stage_that_is_decided_takes_nothing_more(node: StageNode) -> None:
    publisher = stage(node, "a/b")
    assert request(node.client(), "stage.commit", stages=[publisher.name]) == (0, {"committed": True})
    publisher.publish("a/c")
    (_, told) = publisher.told()
    assert told[3] == errors.PRODUCER_FENCED
    assert node.payloads("q") == [b"x"]
    opened = request(node.client(), "producer.open", name=publisher.name, resume=True, stage=True)
    assert opened[0] == errors.UNKNOWN_STAGE


def test_a_stage_is_resumed_on_another_session_with_its_sequences(node: StageNode) -> None:
    publisher = stage(node, "a/b", "a/c")
    publisher.client.send(wire.BYE, [])
    again = StagePublisher(node, node.client(), publisher.name, resume=True)
    assert (again.name, again.last) == (publisher.name, 2)
    again.publish("a/c", "a/d", first=2)
    assert again.acked() == (3, [])
    assert request(again.client, "stage.commit", stages=[again.name]) == (0, {"committed": True})
    assert len(node.stored("q")) == 3


def test_the_name_of_a_stage_is_made_up(node: StageNode) -> None:
    client = node.client()
    for arguments in ({"name": "mine"}, {"resume": True}, {"name": "x" * 161, "resume": True}):
        code, _ = request(client, "producer.open", stage=True, **arguments)
        assert code == errors.INVALID_ARGUMENT
    assert request(client, "producer.open", stage=True, name="x", resume=True)[0] == errors.UNKNOWN_STAGE
    assert node.router.stats()["spool"]["producers"] == 0


def test_what_was_decided_goes_on_over_the_death_of_a_home_and_of_the_router(node: StageNode) -> None:
    publisher = stage(node, "a/b")
    node.hold()
    client = node.client()
    number = ask(client, "stage.commit", stages=[publisher.name])
    node.kill_worker(0)
    node.homes[1].commit()
    node.start_worker(0)
    node.commit()
    assert answer_to(client, number) == (0, {"committed": True})


def test_another_router_is_told_and_does_it(node: StageNode) -> None:
    publisher = stage(node, "a/b")
    node.hold()
    ask(node.client(), "stage.commit", stages=[publisher.name], sink="s", batch=1)
    node.restart_router()
    node.router.publishing.stages.told(node.stages.decided, node.now)
    node.settle()
    node.commit()
    assert request(node.client(), "stage.commit", stages=[publisher.name], sink="s", batch=1) == (
        0,
        {"committed": False},
    )
    node.router.tick(node.now)
    assert len(node.stages) == 0


def test_a_controller_that_is_away_decides_nothing_and_is_told_later(node: StageNode) -> None:
    publisher = stage(node, "a/b")
    client = node.client()
    node.answers = False
    for operation in ("stage.commit", "stage.abort"):
        assert request(client, operation, stages=[publisher.name])[0] == errors.CONTROLLER_UNAVAILABLE
    assert node.settlements() == []
    node.answers = True
    node.hold()
    number = ask(client, "stage.commit", stages=[publisher.name], sink="s", batch=1)
    node.answers = False
    node.commit()
    assert answer_to(client, number) == (0, {"committed": True})
    assert len(node.stages) == 1
    node.answers = True
    node.router.publishing.sweep(node.now, node.router.flows.ends.at_home)
    node.settle()
    assert len(node.stages) == 0


def test_what_a_home_has_and_the_registry_does_not_know_is_dropped(node: StageNode) -> None:
    publisher = stage(node, "a/b")
    index = node.home_of("q").index
    node.silent.add(index)
    fresh = node.restart_worker(index)
    assert node.settlements() == []
    fresh.report(77)
    node.router.publishing.stages.retry()
    node.settle()
    assert [[], [77]] in node.settlements()
    assert request(node.client(), "stage.commit", stages=[publisher.name])[0] == 0


def test_a_client_that_may_not_send_may_not_commit(node: StageNode) -> None:
    client = node.client()
    node.change_profile(allow_guaranteed_send=False)
    for operation in ("stage.commit", "stage.abort"):
        assert request(client, operation, stages=["x"])[0] == errors.GUARANTEED_SEND_DENIED
    assert request(client, "producer.open", stage=True)[0] == errors.GUARANTEED_SEND_DENIED


def test_quotas_count_what_is_staged(node: StageNode) -> None:
    node.change("q", max_spool_usage_mb=1)
    payload = bytes(600_000)
    first, second = stage(node, ("a/b", payload)), stage(node, ("a/b", payload))
    assert first.acked() == (1, [])
    assert second.acked() == (1, [[1, errors.SPOOL_OVER_QUOTA]])
