"""`headrace topics`: the registry's topics on the broker."""

import asyncio
from typing import TYPE_CHECKING

import typer

from headrace.cli.help import command, help_text
from headrace.cli.options import ConfigOption, DebugOption, JsonOption, SetOption, load

if TYPE_CHECKING:
    from headrace.topic_report import TopicReport


def group() -> None:
    """The topics of the registry: create them, list them with their configs, ends and pending work."""


app = typer.Typer(no_args_is_help=True, help=help_text(group))


@command(app, "create")
def create(
    config: ConfigOption = None, set_: SetOption = None, as_json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Create the topics that are missing. Existing ones are left as they are, so it may be run again.

    [dim]headrace topics create --set topics.partitions=12[/dim]
    """
    from headrace.topic_report import create_topics

    created = asyncio.run(create_topics(load(config, set_).settings))
    if as_json:
        _print_json({"created": created})
    else:
        for name in created:
            typer.echo(f"created {name}")
        if not created:
            typer.echo("all topics exist")


@command(app, "list")
def list_(
    config: ConfigOption = None, set_: SetOption = None, as_json: JsonOption = False, debug: DebugOption = False
) -> None:
    """List the registry's topics: configs, end offsets, and pending work.

    Pending are the records that the group which works a topic off has not done; the markers of transactions, which
    leave an offset behind the last record, are not counted. Exit code 1 if a topic is missing.

    [dim]headrace topics list
    headrace topics list --json | jq '.[] | select(.pending > 0)'[/dim]
    """
    from headrace.topic_report import report_topics

    reports = asyncio.run(report_topics(load(config, set_).settings))
    if as_json:
        _print_json(reports)
    else:
        _print_table(reports)
    if not all(report.exists for report in reports):
        raise typer.Exit(1)


def _print_json(value: object) -> None:
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def _print_table(reports: "list[TopicReport]") -> None:
    from headrace.cli.tables import deviation_lines, table_console, topic_table

    console = table_console()
    console.print(topic_table(reports, with_configs=True))
    for line in deviation_lines(reports):
        console.print(line, style="yellow", soft_wrap=True)
