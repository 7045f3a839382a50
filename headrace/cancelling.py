"""Cancels one request and waits for what becomes of it: a cancel alone says nothing of whether it came in time."""

import asyncio
from typing import Literal

import msgspec

from headrace.client import Client, TokenStream
from headrace.client.diagnosis import explain, missing_roles
from schemas.envelope import Status
from schemas.errors import RequestFailed
from schemas.names import Names
from schemas.results import Result
from schemas.settings import Settings

Outcome = Literal["cancelled", "ended_before", "goes_on", "unheard"]


class CancelReport(msgspec.Struct, kw_only=True, frozen=True):
    """What became of a request that was cancelled. Without a `status` it has not ended yet, or there is none."""

    request_id: str
    session: str | None
    outcome: Outcome
    status: Status | None
    completion_tokens: int | None
    message: str


async def cancel_and_see(
    settings: Settings, request_id: str, *, session: str | None, reason: str | None, wait_s: float
) -> CancelReport:
    """Write a cancel, then read the request's stream until its result or for `wait_s`.

    Raises:
        InvalidValue: these can be no request's.
        BrokerUnavailable: the broker is away.
    """
    # The stream never waits in vain by itself: here the whole time counts, and silence is an answer.
    async with Client(settings, timeout_s=2 * wait_s) as client:
        await client.cancel(request_id, session=session, reason=reason)
        answer = client.tail(request_id, session=session)
        was_heard = await _read(answer, wait_s)
    if answer.result is not None:
        return _ended(answer.result, session)
    state = "it has not ended" if was_heard else "nothing was heard of it"
    missing = await missing_roles(settings.kafka, _names(settings), settings.worker.model)
    hints = [explain(missing)] if missing else []
    if not was_heard and session is None:
        hints.append("one of a session needs --session")
    hints.append("the cancel stays noted, and holds when it is heard of")
    return CancelReport(
        request_id=request_id,
        session=session,
        outcome="goes_on" if was_heard else "unheard",
        status=None,
        completion_tokens=None,
        message=f"{request_id}: {state} within {wait_s:g} s; {'; '.join(hints)}",
    )


async def _read(answer: TokenStream, wait_s: float) -> bool:
    """Read until the end or the end of the time; whether anything was heard."""
    was_heard = False
    try:
        async with asyncio.timeout(wait_s):
            async for _ in answer:
                was_heard = True
    except TimeoutError:
        await answer.aclose()
    except RequestFailed:
        return True  # its result says how
    return was_heard


def _ended(result: Result, session: str | None) -> CancelReport:
    num_tokens = result.usage.completion_tokens
    is_cancelled = result.status == "cancelled"
    end = f"cancelled after {num_tokens} tokens" if is_cancelled else f"too late, it had {result.status} before"
    return CancelReport(
        request_id=result.request_id,
        session=session,
        outcome="cancelled" if is_cancelled else "ended_before",
        status=result.status,
        completion_tokens=num_tokens,
        message=f"{result.request_id}: {end}",
    )


def _names(settings: Settings) -> Names:
    return Names(settings.topics.namespace, settings.topics.generation)
