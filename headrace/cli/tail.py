"""`headrace tail`: read a token stream from any index, also one that finished long ago."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SessionOption, SetOption, TimeoutOption, load

if TYPE_CHECKING:
    from schemas.settings import Settings

_AGO = re.compile(r"^(\d+(?:\.\d+)?)([smhd])$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_since(text: str) -> datetime:
    """A time: ISO 8601 (local unless it says otherwise), or how long ago, as in 90s, 10m, 2h, 1d."""
    try:
        if ago := _AGO.match(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is neither a time (2026-11-30T12:00) nor how long ago (10m, 2h)") from error


def tail(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Whose stream.")],
    *,
    from_index: Annotated[
        int, typer.Option("--from-index", metavar="N", min=0, help="Skip what ends before this token of each choice.")
    ] = 0,
    session: SessionOption = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Where to look for an id that tells no time: a time, or 10m, 2h."),
    ] = None,
    timeout: TimeoutOption = 30.0,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Read the stream of a request from any token on, while it runs or long after.

    A request of a session needs `--session`. Ids that headrace makes tell when they were made; for others, `--since`
    saves reading all that is kept.

    [dim]headrace tail 0193a5c2-7b1e-7c3a-9f64-0a1b2c3d4e5f
    headrace tail my-own-id --session sky --since 2h --from-index 100 --json[/dim]

    Exit codes: 0 read to the end, 1 the request failed or is unknown, 2 wrong usage or settings, 130 interrupted.
    """
    import asyncio

    begin = parse_since(since) if since else None
    settings = load(config, set_).settings
    asyncio.run(_tail(settings, request_id, from_index, session, begin, timeout_s=timeout, as_json=as_json))


async def _tail(
    settings: "Settings",
    request_id: str,
    from_index: int,
    session: str | None,
    since: datetime | None,
    *,
    timeout_s: float,
    as_json: bool,
) -> None:
    from headrace.cli.chat import show_json, show_read
    from headrace.client import Client

    async with Client(settings, timeout_s=timeout_s) as client:
        answer = client.tail(request_id, from_index=from_index, session=session, since=since)
        await (show_json(answer, with_deltas=True) if as_json else show_read(settings, answer))
