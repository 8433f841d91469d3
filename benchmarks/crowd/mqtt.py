"""Many clients of any broker of MQTT with gmqtt, 3.1.1 at QoS 0: `publish` and a callback per message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gmqtt import Client
from gmqtt.mqtt.constants import MQTTv311

from benchmarks.crowd.group import RETRY_S, main

if TYPE_CHECKING:
    from benchmarks.crowd.group import Publish, Wish


async def connect(wish: Wish) -> Publish:
    """Give how a client publishes, once it is connected and subscribed; it subscribes again whenever it connects."""
    subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    client = Client(wish.name)
    client.set_config({"reconnect_delay": RETRY_S})

    def on_connect(_client: Client, _flags: int, _code: int, _properties: dict[str, Any]) -> None:
        client.subscribe(wish.subscription, qos=0)

    def on_subscribe(_client: Client, _number: int, _codes: Any, _properties: dict[str, Any]) -> None:
        if subscribed.done():
            wish.back()
        else:
            subscribed.set_result(None)

    def on_message(_client: Client, _topic: str, payload: bytes, _qos: int, _properties: Any) -> None:
        wish.take(payload)

    async def publish(topic: str, payload: bytes) -> None:
        client.publish(topic, payload, qos=0)

    client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, on_message
    address = urlsplit(wish.url)
    try:
        await client.connect(address.hostname, address.port, version=MQTTv311)
        await subscribed
    except BaseException:
        client.stop_reconnect()
        await client.disconnect()
        raise
    return publish


def spell(topic: str) -> str:
    """Give a topic or filter of MQTT."""
    return topic.replace("*", "+")


if __name__ == "__main__":
    main(connect, spell)
