"""What verified mode costs: a step as it is, and a step that gives up each of the things that fix its bits.

Linears "any" compute the rows that there are in one product, not in numbers of rows that were tried. Attention "dense"
reads keys and values that lie side by side in one piece with torch's own attention: no paging, no fixed splits, and no
correct result, so it bounds from below what any attention of ours could take. Processor time of one thread, which other
work on the machine disturbs least.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from benchmarks.report import finish, interval
from engine.config import EngineConfig
from engine.executor import LocalExecutor
from engine.loading import load_executor
from kernels import ops
from kernels.cpu.linear import PackedLinear, _product
from kernels.cpu.rows import RowPlan
from kernels.paging import BLOCK_SIZE, PagedCache, RowSpan
from models.catalog import open_model
from schemas.settings import DEFAULT_MODEL

# (sequences, context, rows each): decoding alone, in small and large batches, and prompts, at odd sizes on purpose.
LOADS = ((1, 40, 1), (1, 1000, 1), (5, 300, 1), (9, 300, 1), (33, 300, 1), (8, 1000, 1), (1, 0, 129), (1, 0, 500))
NUM_REPEATS = 15
_MS_PER_S = 1000


def main() -> None:
    """Measure all loads, the ways in turn, so that a machine that drifts does so for all."""
    executor = load_executor(open_model(DEFAULT_MODEL), EngineConfig(num_threads=1))
    executor.bind_thread()
    rows: list[tuple[str, ...]] = [
        ("sequences", "context", "rows each", "verified ms", "any linears ms", "dense attention ms", "most gain")
    ]
    figures: dict[str, object] = {}
    for load in LOADS:
        times = measure(executor, *load)
        medians = [statistics.median(values) for values in times]
        most_gain = medians[0] / (medians[1] + medians[2] - medians[0])
        rows.append((*map(str, load), *(str(interval(values)) for values in times), f"{most_gain:.2f} x"))
        names = ("verified_ms", "any_linears_ms", "dense_attention_ms")
        figures["x".join(map(str, load))] = dict(zip(names, medians, strict=True)) | {"most_gain": most_gain}
    finish("verified_cost", figures, [], rows)


def measure(executor: LocalExecutor, num_sequences: int, context: int, num_rows: int) -> list[list[float]]:
    """Milliseconds of a step: verified, with any linears, with dense attention."""
    num_blocks = (context + num_rows) // BLOCK_SIZE + 1
    tables = [list(range(i * num_blocks, (i + 1) * num_blocks)) for i in range(num_sequences)]
    spans = [RowSpan(context, num_rows, table) for table in tables]
    token_ids = torch.zeros(num_sequences * num_rows, dtype=torch.int64)
    last_rows = torch.arange(1, num_sequences + 1) * num_rows - 1

    def step() -> float:
        started_s = time.thread_time()
        executor._model.forward(token_ids, spans, last_rows, executor._cache)
        return (time.thread_time() - started_s) * _MS_PER_S

    times: list[list[float]] = [[], [], []]
    for _ in range(NUM_REPEATS):
        times[0].append(step())
        with replaced("linear", any_linear):
            times[1].append(step())
        with replaced("attend", dense_attention(num_sequences, context + num_rows)):
            times[2].append(step())
    return [values[2:] for values in times]  # the first ones warm up


@contextmanager
def replaced(name: str, function: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Let the model compute something else for a while."""
    before = getattr(ops, name)
    setattr(ops, name, function)
    try:
        yield
    finally:
        setattr(ops, name, before)


def any_linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """One product, whatever the number of rows."""
    return _product(x, weight=weight.weight, packed=weight.packed)


def dense_attention(num_sequences: int, num_keys: int) -> Callable[..., torch.Tensor]:
    """torch's attention over keys and values that need not be gathered."""

    def attend(queries: torch.Tensor, plan: RowPlan, cache: PagedCache, layer: int) -> torch.Tensor:
        num_kv_heads, head_dim = cache.shape.num_kv_heads, cache.shape.head_dim
        keys = cache.storage.view(-1)[: num_sequences * num_kv_heads * num_keys * head_dim]
        keys = keys.view(num_sequences, num_kv_heads, num_keys, head_dim)
        grouped = queries.view(num_sequences, -1, num_kv_heads, queries.shape[1] // num_kv_heads, head_dim)
        grouped = grouped.permute(0, 2, 3, 1, 4).reshape(num_sequences, num_kv_heads, -1, head_dim)
        attended = F.scaled_dot_product_attention(grouped, keys, keys)
        return attended.reshape(len(queries), -1)

    return attend


if __name__ == "__main__":
    main()
