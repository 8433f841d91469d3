"""The signature of a webhook, as Standard Webhooks has it: who receives it knows who sent it, and when.

webhook-id: ID, webhook-timestamp: SECONDS, webhook-signature: v1,BASE64 of the HMAC-SHA256 of `ID.SECONDS.BODY`

The id is that of the message and the same for each attempt; the time is that of the attempt, so that a receiver may
refuse what is old, which is a replay.
"""

from __future__ import annotations

import base64
import hashlib
import hmac


def signed_headers(secret: bytes, message_id: str, now: float, body: bytes) -> dict[str, str]:
    """The headers of one attempt."""
    seconds = str(int(now))
    content = f"{message_id}.{seconds}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
    return {"webhook-id": message_id, "webhook-timestamp": seconds, "webhook-signature": f"v1,{signature}"}
