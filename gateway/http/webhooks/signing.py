"""The signature of a webhook, as Standard Webhooks has it: who receives it knows who sent it, and when.

webhook-id: ID, webhook-timestamp: SECONDS, webhook-signature: v1,BASE64 of the HMAC-SHA256 of `ID.SECONDS.BODY`

The id is that of the message and the same for each attempt; the time is that of the attempt, so that a receiver may
refuse what is old, which is a replay.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: One that is in force, and the next one: while receivers change to it, both sign.
SECRETS_MAX: Final = 2
#: What Standard Webhooks asks for.
SECRET_BYTES_MIN: Final = 24


def signed_headers(secrets: Sequence[bytes], message_id: str, now: float, body: bytes) -> dict[str, str]:
    """The headers of one attempt; without a secret it is not signed, and with two a receiver may know either."""
    seconds = str(int(now))
    told = {"webhook-id": message_id, "webhook-timestamp": seconds}
    content = f"{message_id}.{seconds}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(one, content, hashlib.sha256)).decode() for one in secrets]
    if signatures:
        told["webhook-signature"] = " ".join(f"v1,{one}" for one in signatures)
    return told


def secrets_of(text: str) -> list[bytes]:
    """Read secrets, one in each line: base64, as Standard Webhooks writes them, with or without `whsec_`.

    Raises:
        ValueError: there is none, or there are more than two, or one is no base64, or too short to be one.
    """
    secrets = [
        base64.b64decode(line.strip().removeprefix("whsec_"), validate=True)
        for line in text.splitlines()
        if line.strip()
    ]
    if not 1 <= len(secrets) <= SECRETS_MAX or any(len(one) < SECRET_BYTES_MIN for one in secrets):
        raise ValueError
    return secrets
