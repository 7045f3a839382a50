"""Tables that more than one command shows."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.topic_report import TopicReport

_HOUR_MS = 3_600_000
_HOURS_A_DAY = 24

# What reads a pipe has no width, and looks for whole names.
_PIPE_WIDTH = 200


def table_console() -> Console:
    """The console of a table: as wide as the terminal; on a pipe so wide that hardly anything is folded."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _PIPE_WIDTH))


def topic_table(reports: Sequence[TopicReport], *, with_configs: bool = False) -> Table:
    """Topics with their end offsets, partition by partition, and their pending work."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("topic", overflow="fold")
    table.add_column("end offsets", overflow="fold")
    table.add_column("pending", justify="right")
    if with_configs:
        table.add_column("kept")
    for report in reports:
        row = [Text(report.name), _offsets(report), _pending(report)]
        table.add_row(*row, *([_kept(report)] if with_configs else []))
    return table


def deviation_lines(reports: Sequence[TopicReport]) -> list[str]:
    """What on the broker is not as the registry wants it, a line for each topic."""
    return [
        f"{report.name}: " + ", ".join(f"{name} should be {value}" for name, value in report.deviations.items())
        for report in reports
        if report.deviations
    ]


def _offsets(report: TopicReport) -> Text:
    if not report.exists:
        return Text("missing", style="red")
    return Text(" ").join(Text(str(end), style="" if end else "dim") for end in report.end_offsets)


def _pending(report: TopicReport) -> Text:
    if report.pending is None:
        return Text("-", style="dim")
    return Text(str(report.pending), style="bold yellow" if report.pending else "green")


def _kept(report: TopicReport) -> Text:
    if report.configs.get("cleanup.policy") == "compact":
        return Text("compacted")
    hours = int(report.configs.get("retention.ms", -1)) / _HOUR_MS
    if hours < 0:
        return Text("for ever" if report.exists else "")
    return Text(f"{hours / _HOURS_A_DAY:g} days" if hours >= _HOURS_A_DAY else f"{hours:g} hours")
