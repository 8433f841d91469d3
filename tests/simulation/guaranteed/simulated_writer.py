"""A writer of the simulation: batches of tasks that stage, and a driver that commits each batch under its number.

Tasks fail with their connection, stages are thrown away and made again, commits are asked for again until they are
answered, and a driver that died commits its batch again with other stages. Of all attempts at a batch one is published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import errors, wire
from angarium.client.protocol import answers
from angarium.client.protocol.send_window import SendWindow
from angarium.message import Message
from tests.simulation.guaranteed.writer_records import Attempt, WriterRecord

if TYPE_CHECKING:
    from angarium.client.protocol.events import Acknowledged
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient

RETRY_MAX_S = 0.3
BATCHES_MAX = 6
#: Of one batch: where there is no room nothing more is tried then.
ATTEMPTS_MAX = 8
#: How often a driver does a batch again that is published, as if it had never heard of that.
DOES_AGAIN = 0.2


class WriterPlan(NamedTuple):
    """What kind of writer it is."""

    sink: str
    queues: list[str]
    tasks: int = 2
    rows: int = 5
    window: int = 20
    #: Chance that a batch is given up before it is committed.
    gives_up: float = 0.15


class _Claim:
    """Writes down what became of one row."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def settle(self, messages: int) -> None:
        """It is stored."""
        self._task.left -= messages

    def miss(self, _messages: int) -> None:
        """No endpoint took it: what a commit releases is judged by its rows alone."""

    def refuse(self, _sequence: int, _error: errors.AngariumError) -> None:
        """It went nowhere."""
        self._task.is_refused = True

    def fail(self, _messages: int, _error: errors.AngariumError) -> None:
        """Nobody will know."""
        self._task.is_refused = True


class _Task:
    """One stage that is being filled."""

    def __init__(self, rows: int, window: SendWindow) -> None:
        self.left = rows
        self.window = window
        self.is_refused = False


class SimulatedWriter:
    """One sink of a client, over all its connections and processes."""

    def __init__(self, client: GuaranteedClient, plan: WriterPlan) -> None:
        self.client = client
        self.plan = plan
        self.record = WriterRecord(client.plan.vpn, plan.sink)
        client.guaranteed.writers.append(self.record)
        self._batch = self.record.begin()
        self._attempt: Attempt = self._batch.begin()
        #: Stages of the attempt that are complete, and those that are to be aborted.
        self._stages: list[str] = []
        self._garbage: list[str] = []
        self._is_committing = False
        self._task: _Task | None = None
        self._asked = 0
        self.is_wanted = True
        self.is_over = False

    # Life.

    def connected(self) -> None:
        """Go on with what there is to do."""
        self._later()

    def lost(self) -> None:
        """The connection is over, and the task that published on it."""
        self._asked += 1
        if self._task is not None:
            self._give_up()

    def crashed(self) -> None:
        """The driver died: the next one does the batch again, whatever became of it."""
        self._asked += 1
        if not self.is_over:
            self._give_up()

    def _give_up(self) -> None:
        """Throw the attempt away and begin another one."""
        self._task = None
        self._garbage += self._stages
        self._stages = []
        self._is_committing = False
        self._attempt = self._batch.begin()

    def _later(self, delay_s: float = 0.0) -> None:
        self._asked += 1
        asked = self._asked

        def go_on() -> None:
            if self._asked == asked and not self.is_over:
                self._step()

        self.client.loop.after(delay_s, go_on)

    def _again(self) -> None:
        self._later(0.02 + self.client.rng.random() * RETRY_MAX_S)

    def _step(self) -> None:
        rng = self.client.rng
        if self._task is not None:
            return
        if self._is_committing:
            self._commit()
        elif not self.is_wanted or self._is_spent():
            if self._stages:
                self._give_up()
            self._abort()
        elif len(self._stages) < self.plan.tasks:
            self._stage()
        elif rng.random() < self.plan.gives_up:
            self._give_up()
            self._abort()
        else:
            self._is_committing = True
            self._commit()

    def _is_spent(self) -> bool:
        return len(self.record.batches) > BATCHES_MAX or len(self._batch.attempts) > ATTEMPTS_MAX

    def _ask(self, operation: str, arguments: dict[str, Any], decode: Any, done: Any) -> None:
        client, session = self.client, self.client.session
        if session is None or not session.is_open:
            return
        if not session.can_ask() or client.is_paused:
            self._again()
            return
        self._asked += 1
        asked = self._asked

        def answered(value: Any, error: errors.AngariumError | None) -> None:
            if self._asked == asked:
                done(value, error)

        client.wait_for(session.guaranteed.ask(operation, arguments, decode), answered)
        client.transmit()

    # A task.

    def _stage(self) -> None:
        client, session = self.client, self.client.session
        if session is None or not session.is_open or client.welcome is None:
            return
        if not session.can_ask() or client.is_paused:
            self._again()
            return
        rows = SendWindow(self.plan.window)
        rows.set_table(client.welcome.epoch, client.welcome.slots)
        welcome = client.welcome
        rows.set_limits(welcome.max_message_bytes, welcome.max_batch_bytes, welcome.producer_bytes)
        self._asked += 1
        asked = self._asked

        def opened(value: Any, error: errors.AngariumError | None) -> None:
            if self._asked != asked:
                return
            if error is not None:
                self._again()
                return
            self._garbage.append(value.name)
            self._fill(rows)

        arguments = {"name": "", "window": self.plan.window, "resume": False, "stage": True}
        client.wait_for(session.guaranteed.open_producer(rows, arguments), opened)
        client.transmit()

    def _fill(self, rows: SendWindow) -> None:
        rng = self.client.rng
        task = self._task = _Task(self.plan.rows, rows)
        for _ in range(self.plan.rows):
            queue = rng.choice(self.plan.queues)
            what = self.record.name_row(self._attempt, queue)
            row = Message(f"{wire.QUEUE_TOPIC_PREFIX}{queue}", what.encode() + b".", mode="persistent").row
            rows.add(row, _Claim(task))
        self.pump()

    def owns(self, rows: object) -> bool:
        """Tell whether an acknowledgement is about the task that runs."""
        return self._task is not None and self._task.window is rows

    def pump(self) -> None:
        """Send what the window and the ingress credit allow."""
        task, session = self._task, self.client.session
        while task is not None and task.window.handle and session is not None and session.can_publish():
            departure = task.window.take()
            if departure is None:
                break
            session.publish_guaranteed(departure, task.window.handle)
        self.client.transmit()

    def acknowledged(self, event: Acknowledged) -> None:
        """Some rows are settled."""
        task = self._task
        assert task is not None
        if event.error is not None or task.is_refused:
            self._give_up()
            self._again()
        elif task.left:
            self.pump()
        else:
            self._task = None
            self._stages.append(self._garbage.pop())
            self._later()

    # The driver.

    def _commit(self) -> None:
        self._attempt.committed_at = min(self._attempt.committed_at, self.client.loop.now)
        arguments = {"stages": self._stages, "sink": self.plan.sink, "batch": self._batch.number}
        self._ask("stage.commit", arguments, answers.decode_committed, self._committed)

    def _committed(self, value: Any, error: errors.AngariumError | None) -> None:
        now = self.client.loop.now
        if error is not None and error.code in (errors.OBJECT_NOT_FOUND, errors.UNKNOWN_FLOW_NAME):
            # Another attempt of this batch was aborted under its hands: it starts over.
            self.record.refusals.append((now, self._batch.number, error.code))
            self._give_up()
            self._again()
        elif error is not None:
            self.record.refusals.append((now, self._batch.number, error.code))
            self._again()
        else:
            self._batch.answered_at = min(self._batch.answered_at, now)
            self._batch.answers.append(value.committed)
            self._stages, self._is_committing = [], False
            if self.client.rng.random() > DOES_AGAIN:
                self._batch = self.record.begin()
            self._attempt = self._batch.begin()
            self._later(self.client.rng.random() * 0.2)

    def _abort(self) -> None:
        if not self._garbage:
            self._aborted(None, None)
            return
        self._ask("stage.abort", {"stages": list(self._garbage)}, answers.decode_done, self._aborted)

    def _aborted(self, _value: Any, error: errors.AngariumError | None) -> None:
        if error is not None:
            self._again()
            return
        self._garbage = []
        if not self.is_wanted or self._is_spent():
            self.is_over = True
        else:
            self._later()
