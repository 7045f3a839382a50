"""`headrace config`: which settings hold, and where each came from."""

from typing import TYPE_CHECKING

import typer

from headrace.cli.help import command, help_text
from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SetOption, load

if TYPE_CHECKING:
    from runtime.config import SettingLine


def group() -> None:
    """Settings: which hold, and where each came from."""


app = typer.Typer(no_args_is_help=True, help=help_text(group))


@command(app, "show")
def show(
    config: ConfigOption = None, set_: SetOption = None, as_json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Show every setting with its source. Secrets are masked.

    [dim]headrace config show
    headrace config show --json | jq '.[] | select(.source != "default")'
    HEADRACE_TOPICS__PARTITIONS=12 headrace config show[/dim]
    """
    from runtime.config import setting_lines

    lines = setting_lines(load(config, set_))
    if as_json:
        import msgspec

        rows = [line._asdict() for line in lines]
        typer.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        _print_table(lines)


def _print_table(lines: "list[SettingLine]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from headrace.cli.tables import table_console

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    for heading in ("value", "source"):
        table.add_column(heading, overflow="fold")
    for line in lines:
        is_default = line.source == "default"
        value = "" if line.value is None else str(line.value)
        table.add_row(
            line.name,
            Text(value),
            Text(line.source, style="dim" if is_default else ""),
            style="" if is_default else "bold",
        )
    table_console().print(table)
