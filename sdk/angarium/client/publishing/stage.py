"""Staged publishing: messages that are stored, and belong to nobody until somebody commits them.

    stage = await client.stage()
    await stage.publish_many(messages)
    await stage.close()                                      # stored, or the error that refused one
    await client.commit_stages([stage.id], "sink-1", batch)  # perhaps another client, with the same username

A stage is a producer of its own: windows, receipts and reconnects are those of `Producer`. Its rows are matched and
judged when they are staged, so whatever may refuse them does it before the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.client.protocol.answers import STAGE_WINDOW_MAX
from angarium.client.publishing.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.connection.connection import Connection
    from angarium.client.connection.operations import Operations


class Stage(Producer):
    """Publishes what waits for a commit; `Client.stage` opens it."""

    _window_max = STAGE_WINDOW_MAX

    def __init__(
        self,
        connection: Connection,
        operations: Operations,
        window: int,
        on_over: Callable[[Producer], None],
    ) -> None:
        """Be ready to open; applications call `Client.stage`."""
        super().__init__(connection, operations, "", window, None, on_over)
        self._is_nameless = False

    @property
    def id(self) -> str:
        """What `commit_stages` and `abort_stages` name it by."""
        return self.name

    async def close(self, *, forget: bool = False, timeout_s: float | None = None) -> None:  # noqa: ARG002 - of a producer
        """Wait until everything is stored, and take nothing more. Nothing happens the second time.

        Args:
            forget: nothing; the node forgets a stage when it is settled.
            timeout_s: how long to wait at most; what is not stored then fails with CLIENT_CLOSED.

        Raises:
            TimeoutExpiredError: not everything was stored within the time (TIMEOUT).
            AngariumError: a message was refused that nobody waited for (the first one, with the number of all), or the
                stage is over, and why: do not commit it.
        """
        if self.error is not None:
            if self.error.code != errors.CLIENT_CLOSED:
                raise self.error
            return
        try:
            await self.flush(timeout_s)
        finally:
            await super().close(timeout_s=timeout_s)

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "stage": True}
