"""`headrace cancel`: stop a request, and say what became of it."""

import sys
from typing import Annotated

import typer

from headrace.cli.exits import EXIT_FAILED, EXIT_OK, EXIT_TOO_LATE, EXIT_UNHEARD
from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SessionOption, SetOption, load

_EXIT_CODES = {"cancelled": EXIT_OK, "ended_before": EXIT_TOO_LATE, "goes_on": EXIT_FAILED, "unheard": EXIT_UNHEARD}


def cancel(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Which request.")],
    *,
    session: SessionOption = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why: the result of the request will say it.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.1, help="How long its result is waited for.")
    ] = 10.0,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Stop a request wherever it is: it ends as cancelled, and keeps what it has said.

    A request of a session needs `--session`; its session stays where it was. A request that nobody has heard of yet is
    stopped when it comes.

    [dim]headrace cancel 0193a5c2-7b1e-7c3a-9f64-0a1b2c3d4e5f
    headrace cancel my-own-id --session sky --reason "asked twice" --json[/dim]

    Exit codes: 0 cancelled, 1 it goes on, 2 wrong usage or settings, 3 nothing was heard of it, 4 it had ended before,
    130 interrupted.
    """
    import asyncio

    import msgspec

    from headrace.cancelling import cancel_and_see

    settings = load(config, set_).settings
    seen = asyncio.run(cancel_and_see(settings, request_id, session=session, reason=reason, wait_s=wait))
    if as_json:
        sys.stdout.write(msgspec.json.encode(seen).decode() + "\n")
    else:
        typer.echo(seen.message, err=seen.status is None)
    raise typer.Exit(_EXIT_CODES[seen.outcome])
