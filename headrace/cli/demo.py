"""`headrace demo`: what a newcomer sees first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.exits import EXIT_OK
from headrace.cli.options import ConfigOption, DebugOption, SetOption, load

if TYPE_CHECKING:
    from rich.console import Console

    from runtime.config import LoadedSettings

# Questions that a model of 135 million parameters gets right; the second one makes no sense without the first.
TURNS = (
    "What is the capital of France, and what is it known for?",
    "Which river flows through it?",
)
MAX_TOKENS = 80


def demo(
    *,
    reset: Annotated[bool, typer.Option("--reset", help="Delete the local stack's data first.")] = False,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="Chat; without it only --reset is done.")] = True,
    config: ConfigOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """See it work: two turns of a chat through Kafka, live, then where everything went.

    Starts what is missing (Kafka, S3, gate, pipeline, worker) and stops it again; a running `headrace up` is used as
    it is. Data is kept, so a second run finds the first one's; `--reset` deletes it before.

    [dim]headrace demo
    headrace demo --reset
    headrace demo --reset --no-chat[/dim]

    Exit codes: 0 all worked, 1 something failed, 2 wrong settings, 130 interrupted.
    """
    from headrace.cli import interrupts
    from headrace.cli.lasting_console import LastingConsole

    console = LastingConsole(highlight=False)
    loaded = load(config, set_)
    work = _demo(console, loaded, config, set_ or [], reset=reset, chat=chat)
    raise typer.Exit(
        interrupts.run(work, on_first=lambda: console.print("\nstopping; Ctrl-C again ends at once", style="dim"))
    )


async def _demo(
    console: "Console", loaded: "LoadedSettings", config: Path | None, overrides: list[str], *, reset: bool, chat: bool
) -> int:
    from headrace.cli.demo_show import DemoShow
    from headrace.local.stack import reset as reset_data
    from headrace.settings import local_data_dir

    data_dir = local_data_dir(loaded.settings)
    if reset:
        await reset_data(data_dir)
        console.print(f"deleted the data in {data_dir}", style="dim", soft_wrap=True)
    if chat:
        await DemoShow(console, loaded, config, overrides).run()
    return EXIT_OK
