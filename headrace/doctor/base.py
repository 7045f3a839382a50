"""What a check is, what it may find, and how it is run: in time, and so that one that breaks hides no other."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from schemas.errors import HeadraceError

Status = Literal["ok", "warning", "failed", "skipped"]

# No check may keep a person waiting for longer.
LIMIT_S = 10.0
# What a check that is told to stop may still take to put away its connections and children.
_GRACE_S = 1.0

_log = logging.getLogger(__name__)


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """What one check found. `remedy` is a command or a setting; a warning and a failure always have one."""

    name: str
    status: Status
    found: str
    remedy: str | None = None


class Check(NamedTuple):
    """One look at one thing.

    `examine` reads only, or takes back what it wrote, and may be cancelled at any moment. It may find several things,
    and may raise: that is a failure with the `remedy` of the check.
    """

    name: str
    examine: Callable[[], Awaitable[Finding | Sequence[Finding]]]
    remedy: str
    limit_s: float = LIMIT_S


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name=name, status="ok", found=found)


def warning(name: str, found: str, remedy: str) -> Finding:
    """It works, but not as it should in production, or not for long."""
    return Finding(name=name, status="warning", found=found, remedy=remedy)


def failed(name: str, found: str, remedy: str) -> Finding:
    """Something will not work."""
    return Finding(name=name, status="failed", found=found, remedy=remedy)


def skipped(name: str, why: str) -> Finding:
    """Not looked at, since it is not needed or cannot be reached."""
    return Finding(name=name, status="skipped", found=why)


async def find(check: Check) -> list[Finding]:
    """Run one check. Never raises, save for the caller's own cancellation, and ends soon after the check's limit."""
    task = asyncio.ensure_future(_examine(check))
    try:
        await asyncio.wait({task}, timeout=check.limit_s)
    finally:
        task.cancel()
    if not task.done():
        await asyncio.wait({task}, timeout=_GRACE_S)
    if not task.done() or task.cancelled():
        return [failed(check.name, f"no answer within {check.limit_s:g} s", check.remedy)]
    return task.result()


async def find_all(checks: Iterable[Check]) -> list[Finding]:
    """Run checks side by side; what they find stays in their order."""
    found = await asyncio.gather(*(find(check) for check in checks))
    return [finding for findings in found for finding in findings]


async def _examine(check: Check) -> list[Finding]:
    try:
        found = await check.examine()
    except HeadraceError as error:
        return [failed(check.name, error.message, check.remedy)]
    except Exception as error:  # noqa: BLE001 (a check that breaks must not hide what the others find)
        _log.debug("the check %r broke", check.name, exc_info=error)
        return [failed(check.name, f"{type(error).__name__}: {error}", check.remedy)]
    return [found] if isinstance(found, Finding) else list(found)
