"""`headrace up`: all of headrace on this machine, in the foreground."""

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headrace.cli.exits import EXIT_OK
from headrace.cli.options import ConfigOption, DebugOption, SetOption, load

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.ensemble import Ensemble
    from runtime.config import LoadedSettings


def up(config: ConfigOption = None, set_: SetOption = None, debug: DebugOption = False) -> None:
    """Run all of it on this machine: Kafka, S3, gate, pipeline and worker. Ctrl-C stops all.

    Data is kept from run to run in `local.data_dir`, and each role logs to a file there. Other commands find what
    runs by themselves.

    [dim]headrace up
    headrace up --set local.data_dir=./data --set topics.partitions=12[/dim]

    Exit codes: 0 stopped by Ctrl-C, 1 something failed for good, 2 wrong settings, 130 interrupted while starting.
    """
    from headrace.cli import interrupts
    from headrace.cli.lasting_console import LastingConsole

    console = LastingConsole(stderr=True)
    loaded = load(config, set_)
    refuse_a_second_broker(loaded)

    def on_first() -> None:
        console.print("[dim]stopping; Ctrl-C again ends at once[/dim]")

    raise typer.Exit(interrupts.run(_up(console, loaded, config, set_ or []), on_first=on_first))


def refuse_a_second_broker(loaded: "LoadedSettings") -> None:
    """`up` runs its own Kafka and S3: with others set, the roles would talk to those."""
    from schemas.errors import LocalStackError, SettingsError

    for name in ("kafka.bootstrap_servers", "storage.endpoint"):
        source = loaded.sources[name]
        if source.startswith("local stack"):
            raise LocalStackError(f"it runs already: {source}; stop that one first, or choose another local.data_dir")
        if source != "default":
            raise SettingsError(
                f"{name} is set ({source}), but `headrace up` runs its own; unset it, or start the roles with "
                "`headrace serve`"
            )


async def _up(console: "Console", loaded: "LoadedSettings", config: Path | None, overrides: list[str]) -> int:
    from headrace.cli.progress import StartProgress
    from headrace.ensemble import Ensemble

    progress = StartProgress(console)
    ensemble = Ensemble(loaded, config_file=config, overrides=overrides, on_progress=progress.update)
    async with AsyncExitStack() as resources:
        with progress:
            await resources.enter_async_context(ensemble)
        show_endpoints(console, ensemble)
        # Ctrl-C is how it is meant to end: what follows is the stop in good order.
        with suppress(asyncio.CancelledError):
            await ensemble.watch()
    console.print(f"[dim]stopped; the data is kept in {ensemble.data_dir}[/dim]", soft_wrap=True)
    return EXIT_OK


def show_endpoints(console: "Console", ensemble: "Ensemble") -> None:
    """Where everything is, and what to do next."""
    from rich.table import Table

    settings = ensemble.settings
    table = Table.grid(padding=(0, 2))
    table.add_row("Kafka", settings.kafka.bootstrap_servers)
    table.add_row("S3", f"http://{settings.storage.endpoint}/{settings.storage.bucket}")
    table.add_row("metrics", "  ".join(f"{role} :{port}/metrics" for role, port in ensemble.metrics_ports.items()))
    table.add_row("data, logs", str(ensemble.data_dir))
    console.print()
    console.print(table, soft_wrap=True)
    console.print()
    console.print("In another terminal:", style="bold")
    console.print('  headrace chat "Why is the sky blue?"')
    console.print("  headrace topics list")
    console.print("Ctrl-C stops all.", style="dim")
