"""`headrace doctor`: what is wrong, and what to do about it."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.exits import EXIT_FAILED
from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SetOption, quiet_logs

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from headrace.doctor import Finding

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def doctor(
    *,
    dev: Annotated[bool, typer.Option("--dev", help="This is no production: one broker is enough.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Check this machine, the settings, the broker with its topics, and object storage; say what to do.

    Works without a broker. Nothing is changed: two small objects are put into the bucket and deleted again.

    [dim]headrace doctor
    headrace doctor --dev --set kafka.bootstrap_servers=localhost:9092
    headrace doctor --json | jq '.[] | select(.status == "failed")'[/dim]

    Exit codes: 0 nothing failed, 1 something failed, 2 wrong usage, 130 interrupted.
    """
    quiet_logs()
    found = _examine(config, set_ or [], is_dev=dev, is_silent=as_json)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found)
    if any(finding.status == "failed" for finding in found):
        raise typer.Exit(EXIT_FAILED)


def _examine(config: "Path | None", overrides: list[str], *, is_dev: bool, is_silent: bool) -> "list[Finding]":
    import asyncio
    from contextlib import nullcontext

    from rich.console import Console

    from headrace.doctor import examine
    from headrace.doctor.threads import new_event_loop

    waiting = nullcontext() if is_silent or not sys.stderr.isatty() else Console(stderr=True).status("looking around")
    with waiting, asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(examine(config, overrides, is_dev=is_dev))


def _print(found: "list[Finding]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("check", "", "found"):
        table.add_column(heading, overflow="fold")
    for finding in found:
        style = _STYLES[finding.status]
        table.add_row(Text(finding.name), Text(finding.status, style=style), _told(finding))
    console = Console()
    console.print(table)
    counts = {status: sum(finding.status == status for finding in found) for status in _STYLES}
    console.print(", ".join(f"{count} {status}" for status, count in counts.items() if count), highlight=False)


def _told(finding: "Finding") -> "Text":
    from rich.text import Text

    from headrace.cli.speaker import printable

    # Other programs and servers have their say in it: nothing of that may control the terminal.
    told = Text(printable(finding.found), style="dim" if finding.status == "skipped" else "")
    return told if finding.remedy is None else told.append(f"\n→ {printable(finding.remedy)}", style="bold")
