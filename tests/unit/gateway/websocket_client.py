"""Bytes of a client of WebSocket, written by hand: also those that no library would write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
#: The key of RFC 6455 section 1.3, and what a server makes of it.
KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT: Final = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
HEADERS: Final = {
    "Host": "node",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Origin": "https://elsewhere.example",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqttv3.1, mqtt",
}


def request(path: str = "/mqtt", **changed: str | None) -> bytes:
    """Ask for a WebSocket; a header that is None is left out, and `_` stands for `-`."""
    headers = HEADERS | {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()


def frame(
    payload: bytes, opcode: int = BINARY, *, is_last: bool = True, mask: bytes = b"\x01\x80\x7f\xfe"
) -> bytes:
    """Write a masked frame."""
    size = len(payload)
    if size < 126:
        length = bytes([0x80 | size])
    elif size < 1 << 16:
        length = b"\xfe" + size.to_bytes(2, "big")
    else:
        length = b"\xff" + size.to_bytes(8, "big")
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes([(0x80 if is_last else 0) | opcode]) + length + mask + masked


def chopped(rng: random.Random, data: bytes, sizes: list[int]) -> bytes:
    """Write a stream as frames of such sizes, some in fragments, with pings between."""
    written, at, is_within = b"", 0, False
    while at < len(data) or is_within:
        size = rng.choice(sizes)
        is_last = rng.random() < 0.5
        written += frame(
            data[at : at + size],
            CONTINUATION if is_within else BINARY,
            is_last=is_last,
            mask=rng.randbytes(4),
        )
        at, is_within = at + size, not is_last
        if rng.random() < 0.2:
            written += frame(rng.randbytes(rng.randrange(20)), rng.choice([PING, PONG]))
    return written
