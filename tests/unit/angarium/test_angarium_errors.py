"""Errors: which exception a code gives, which of Python's own it is as well, and what survives pickling."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from angarium import errors


@pytest.mark.parametrize(
    ("code", "kind", "own"),
    [
        (errors.TIMEOUT, errors.TimeoutExpiredError, TimeoutError),
        (errors.NOT_CONNECTED, errors.ConnectionLostError, ConnectionError),
        (errors.CLIENT_CLOSED, errors.ConnectionLostError, ConnectionError),
        (errors.OBJECT_NOT_FOUND, errors.NotFoundError, LookupError),
        (errors.UNKNOWN_ENDPOINT, errors.NotFoundError, LookupError),
        (errors.UNKNOWN_CLIENT_NAME, errors.NotFoundError, LookupError),
        (errors.UNAUTHORIZED, errors.UnauthorizedError, PermissionError),
        (errors.PUBLISH_DENIED, errors.ForbiddenError, PermissionError),
        (errors.INVALID_TOPIC, errors.InvalidArgumentError, ValueError),
        (errors.INVALID_ARGUMENT, errors.InvalidRequestError, ValueError),
        (errors.INVALID_SELECTOR, errors.InvalidRequestError, ValueError),
    ],
)
def test_an_error_is_that_of_its_family_and_one_of_python(
    code: int, kind: type[Exception], own: type[Exception]
) -> None:
    error = errors.error_for(code, "the detail")
    assert isinstance(error, errors.AngariumError)
    assert isinstance(error, kind)
    assert isinstance(error, own)
    assert str(error).startswith(f"error {code}: ")
    assert "the detail" in str(error)


@pytest.mark.parametrize(
    "code", [errors.MALFORMED_FRAME, errors.UNKNOWN_FLOW, errors.PRODUCER_WINDOW_EXCEEDED]
)
def test_a_fault_of_the_protocol_is_no_wrong_argument(code: int) -> None:
    assert not isinstance(errors.error_for(code), ValueError)


@pytest.mark.parametrize("code", sorted(errors.ERRORS))
def test_every_error_survives_pickling(code: int) -> None:
    """A pool of processes hands exceptions to its parent that way."""
    error = errors.error_for(code, "detail", "advice of its own")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.code, copy.detail, copy.advice) == (
        str(error),
        code,
        "detail",
        "advice of its own",
    )


def test_a_wait_of_asyncio_and_a_call_of_the_sdk_end_with_the_same_exception() -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    with pytest.raises(TimeoutError):
        raise errors.error_for(errors.TIMEOUT)
