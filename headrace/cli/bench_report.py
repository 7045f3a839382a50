"""How the figures of `headrace bench engine` are shown: two tables, and a progress bar before them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headrace.engine_bench import EngineReport
from headrace.estimate import Estimate

_BAR_WIDTH = 16
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MB = 1e6
_MIN_WIDTH = 100


@contextmanager
def progress_to_stderr(num_units: int) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, nothing elsewhere; gives the function that moves it."""
    console = Console(stderr=True)
    columns = (TextColumn("measuring"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=num_units)
        yield lambda units: progress.update(task, advance=units)


def print_report(report: EngineReport) -> None:
    """The tables on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=max(console.width, _MIN_WIDTH))
    memory = report.memory
    console.print(Text(f"{report.model} · {report.dtype} · {report.num_threads} threads · {report.processor}", "bold"))
    console.print(
        f"loaded in {report.load_s:.1f} s · memory {memory.rss_loaded_bytes / _MB:.0f} MB, at most "
        f"{memory.rss_peak_bytes / _MB:.0f} MB · KV {memory.kv_bytes_per_token:,} bytes a token, room for "
        f"{memory.kv_capacity_tokens:,} tokens",
        soft_wrap=True,
    )
    console.print(_prefill_table(report))
    console.print(_decode_table(report))
    console.print("Medians with their 95 % intervals.", style="dim")


def _prefill_table(report: EngineReport) -> Table:
    table = _table("prefill", "prompt tokens", "TTFT, ms", "tokens/s")
    best = max(one.tokens_per_s.median for one in report.prefill)
    for one in report.prefill:
        cells = (f"{one.prompt_tokens:,}", _shown(one.ttft_ms), _shown(one.tokens_per_s))
        table.add_row(*cells, bar(one.tokens_per_s.median / best))
    return table


def _decode_table(report: EngineReport) -> Table:
    table = _table("decode", "batch", "context", "step = TPOT, ms", "tokens/s", "KV, MB")
    best = max(one.tokens_per_s.median for one in report.decode)
    for one in report.decode:
        cells = (str(one.batch), f"{one.context:,}", _shown(one.tpot_ms), _shown(one.tokens_per_s))
        table.add_row(*cells, f"{one.kv_bytes / _MB:.1f}", bar(one.tokens_per_s.median / best))
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold cyan", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="crop")
    return table


def _shown(estimate: Estimate) -> str:
    return f"{_rounded(estimate.median)} [{_rounded(estimate.low)}, {_rounded(estimate.high)}]"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def bar(share: float) -> str:
    """A share of the longest bar, in eighths of a character."""
    eighths = round(share * _BAR_WIDTH * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
