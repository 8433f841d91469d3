"""The shell of the process of webhooks: aiohttp in a loop of asyncio, in which the process has its turns.

What has to be there is told by the controller, again whenever it changes; at the end of each turn that is compared with
what is there. A webhook that has changed ends, with its attempts, before it begins anew: so it never has more of them
than its window.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium.trace_context import CONTEXTS
from angarium_server.connections.outgoing import to_router
from angarium_server.http.turns import Turns
from angarium_server.memory.memory import in_use_bytes
from angarium_server.process import Process, at_work, load_config
from cluster.webhook.posting import Poster
from cluster.webhook.role import METRICS, WebhookConfig, WebhookRuntime
from gateway.http.webhooks.attempts import GONE, Answer, Rules
from gateway.http.webhooks.room import Room
from gateway.http.webhooks.webhook import Settings, Webhook
from gateway.session import Identity
from gateway.vpn_carriers import VpnCarriers

if TYPE_CHECKING:
    from angarium.message import Row
    from gateway.attached import Attached, Guest, Login
    from gateway.http.webhooks.webhook import Held

ROLE: Final = "webhook"
#: Attempts that are under way when the process stops may take so long, and then the session with the router.
STOP_S: Final = 3.0
LEAVE_S: Final = 2.0
#: Looking up names takes a thread each, for as long as a name server is silent; a webhook looks up one at a time.
LOOKUPS_MAX: Final = 64

_log = logging.getLogger(ROLE)
Key = tuple[str, str]


class Running:
    """A webhook that is there, with its connections and attempts; its hands are those of the process, but for posts."""

    def __init__(
        self, config: WebhookConfig, runtime: WebhookRuntime, server: WebhookServer, share: int
    ) -> None:
        self.config = config
        self._server = server
        self._poster = Poster(config, runtime.allowed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.webhook = Webhook(settings_of(config), runtime.node_id, self, server.room, share)

    def attach(self, guest: Guest, login: Login, vpn: str, now: float) -> Attached:
        """Log its client in."""
        return self._server.attach(guest, login, vpn, now)

    def chance(self) -> float:
        """Give a number from 0 to 1."""
        return random.random()  # noqa: S311 - jitter is no secret

    def post(self, held: Held) -> None:
        """Begin an attempt."""
        task = asyncio.get_running_loop().create_task(self._attempt(held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, held: Held) -> None:
        answer = Answer(None, failure="it was given up")
        try:
            answer = await self._poster.post(held)
        finally:
            self.webhook.posted(held, answer, time.monotonic(), time.time())
            self._server.touched()

    async def close(self) -> None:
        """Give up what is under way, and end its connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._poster.close()


class WebhookServer:
    """The process at work."""

    def __init__(self, process: Process, runtime: WebhookRuntime) -> None:
        self._process = process
        self._runtime = runtime
        self._turns = Turns(process, self._tick)
        self._carriers = VpnCarriers(
            Identity(runtime.local_secret, ROLE, process.index, process.incarnation),
            to_router(process, process.runtime_dir),
            _pass_over,
            random.Random(),  # noqa: S311 - pauses are no secret
        )
        self.room = Room(runtime.memory_bytes)
        #: What has to be there, and what is, by Message VPN and name.
        self._wanted: dict[Key, WebhookConfig] = {}
        self._running: dict[Key, Running] = {}
        #: Those whose connections are being closed.
        self._closing: set[asyncio.Task[None]] = set()
        process.on_request(self._request)
        process.ready({})

    def attach(self, guest: Guest, login: Login, vpn: str, now: float) -> Attached:
        """Log a client in."""
        self._turns.soon()
        return self._carriers.attach(vpn, guest, login, now)

    def touched(self) -> None:
        """Have a turn soon: there is something to send."""
        self._turns.soon()

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the process is asked to stop."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(LOOKUPS_MAX))
        self._turns.begin()
        try:
            await self._turns.stopping()
            self._wanted = {}
            await self._turns.until(lambda: not self._running, STOP_S)
            self._carriers.stop()
            await self._turns.until(lambda: self._carriers.is_gone, LEAVE_S)
            for running in self._running.values():
                await running.close()
            await asyncio.gather(*self._closing)
        finally:
            self._turns.end()

    def _tick(self, now: float) -> float:
        self._begin()
        wake = inf
        for key, running in self._running.items():
            wake = min(wake, running.webhook.tick(now))
            if running.webhook.news(now):
                self._tell(key, running.webhook)
        self._end()
        return min(wake, self._carriers.tick(now))

    def _begin(self) -> None:
        """Begin what is not there, and have end what is not wanted, or not as it is, or has too large a share."""
        share = self.room.share_of(len(self._wanted))
        for key, running in self._running.items():
            if running.config != self._wanted.get(key) or running.webhook.share > share:
                running.webhook.stop()
        for key, config in self._wanted.items():
            if key not in self._running:
                self._running[key] = Running(config, self._runtime, self, share)

    def _end(self) -> None:
        """Forget what has ended; what is wanted otherwise begins with the next turn."""
        for key in [key for key, running in self._running.items() if running.webhook.is_over]:
            task = asyncio.get_running_loop().create_task(self._running.pop(key).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._turns.soon()

    def _tell(self, key: Key, webhook: Webhook) -> None:
        vpn, name = key
        is_up = webhook.is_up
        text = f"webhook {name!r} " + (
            "posts messages" if is_up else f"does not get through: {webhook.error}"
        )
        _log.log(logging.INFO if is_up else logging.WARNING, "%s, Message VPN %s", text, vpn)
        self._process.emit_event(
            {
                "severity": "notice" if is_up else "warning",
                "event": "VPN_WEBHOOK_UP" if is_up else "VPN_WEBHOOK_DOWN",
                "scope": "VPN",
                "vpn": vpn,
                "webhook": name,
                "text": text,
            }
        )

    # -- the controller --------------------------------------------------------------------------------------

    def _request(self, operation: str, arguments: Any) -> Any:
        match operation:
            case "webhook_config":
                found = msgspec.convert(arguments["webhooks"], list[WebhookConfig])
                self._wanted = {(one.vpn, one.name): one for one in found}
                self._turns.soon()
                return None
            case "webhooks":
                now = time.monotonic()
                return {"/".join(key): one.webhook.describe(now) for key, one in self._running.items()}
            case "stats":
                return self._stats(time.monotonic())
        raise errors.error_for(errors.UNKNOWN_OPERATION, operation)

    def _stats(self, now: float) -> dict[str, Any]:
        told = {"/".join(key): one.webhook.describe(now) for key, one in self._running.items()}
        for one in told.values():
            one["up"] = int(one["state"] in ("up", "standby"))
            one["standby"] = int(one["state"] == "standby")
        by_webhook = [metric.name for metric in METRICS if metric.label]
        figures = {name: {key: one[name] for key, one in told.items()} for name in by_webhook}
        room = self.room
        return {
            **figures,
            "held_bytes": room.held,
            "held_bytes_max": room.bytes_max,
            "room_waits": room.waits,
            "given_back": room.given_back,
            "malformed_contexts": CONTEXTS.dropped,
            "in_use_bytes": in_use_bytes(),
        }


def settings_of(config: WebhookConfig) -> Settings:
    """Give what decides of what is configured."""
    rules = Rules(
        first_delay_s=config.retry_delay_initial_ms / 1_000,
        longest_delay_s=config.retry_delay_max_ms / 1_000,
        permanent=frozenset({GONE, *config.permanent_codes}),
        attempts_max=config.max_attempts,
    )
    return Settings(config.vpn, config.name, config.queue, config.username, config.window, rules)


def _pass_over(_vpn: str, _rows: list[Row], _now: float) -> bool:
    """Direct messages come to nobody here."""
    return True


async def _serve(process: Process) -> None:
    await WebhookServer(process, load_config(process.runtime_dir, ROLE, WebhookRuntime)).run()


def main() -> None:
    """Run until the process is told to stop."""
    with at_work(ROLE) as process:
        asyncio.run(_serve(process))
