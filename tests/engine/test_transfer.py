"""KV leaves an engine as bytes and comes back, here or elsewhere, exactly as it was or not at all."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.kv.transfer import UnusableBlob, decode, encode
from engine.types import GenerationOutput
from kernels.cpu import features
from models.kv_keys import BLOCK_SIZE
from tests.engine.simulation import expected_tokens, simulated_engine
from tests.engine.tiny import check_blocks, last, run, tiny_chain, tiny_engine, tiny_request, tokens

PROMPT = [(5 * i * i + i) % 256 for i in range(100)]
REQUEST = tiny_request("r", PROMPT, max_tokens=20, seed=3, temperature=0.9, top_logprobs=2, ignore_eos=True)
BLOCKS = st.lists(st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=8, max_size=8)), max_size=4)


def handle(prompt: list[int] = PROMPT, tenant: str = "default") -> list[bytes]:
    chain = tiny_chain(tenant)
    return chain.append(prompt)


def exported() -> bytes:
    """The KV of the prompt, from an engine that has had it."""
    engine, _ = simulated_engine(32)
    run(engine, [REQUEST])
    return engine.kv.export(handle())


def bits(outputs: list[GenerationOutput]) -> object:
    return tokens(outputs, "r"), [p for output in outputs for p in output.logprobs or []]


@given(blocks=BLOCKS)
def test_what_is_encoded_is_decoded(blocks: list[tuple[bytes, bytes]]) -> None:
    assert [(key, bytes(content)) for key, content in decode(encode("l", blocks), "l")] == blocks


@given(blocks=BLOCKS.filter(len), data=st.data())
def test_any_change_of_any_byte_is_noticed_before_the_block_is_used(
    blocks: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    blob = bytearray(encode("l", blocks))
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
    got: list[tuple[bytes, bytes]] = []
    with pytest.raises(UnusableBlob):
        got.extend((key, bytes(content)) for key, content in decode(bytes(blob), "l"))
    assert got == blocks[: len(got)]


@given(blocks=BLOCKS, junk=st.binary(max_size=80), data=st.data())
def test_what_is_cut_off_prolonged_or_something_else_is_refused(
    blocks: list[tuple[bytes, bytes]], junk: bytes, data: st.DataObject
) -> None:
    blob = encode("l", blocks)
    cut = data.draw(st.integers(0, len(blob) - 1))
    for bad in (blob[:cut], blob + b"\0", junk):
        with pytest.raises(UnusableBlob):
            list(decode(bad, "l"))


def test_blocks_that_were_swapped_or_relabelled_are_refused() -> None:
    blocks = [(bytes([i]) * 32, bytes([i]) * 8) for i in range(3)]
    blob = encode("l", blocks)
    size = 32 + 32 + 8
    first = len(blob) - 3 * size
    parts = [blob[first + i * size : first + (i + 1) * size] for i in range(3)]
    relabelled = [parts[1][:32] + parts[0][32:], parts[0][:64] + parts[1][64:], parts[0][:32] + parts[1][32:]]
    for part in relabelled:
        with pytest.raises(UnusableBlob, match="Block 0 of 3 is damaged"):
            list(decode(blob[:first] + part + parts[1] + parts[2], "l"))
    with pytest.raises(UnusableBlob, match="layout 'l', not of 'm'"):
        list(decode(blob, "m"))


def test_the_next_request_finds_what_was_imported() -> None:
    blob = exported()
    engine, executor = simulated_engine(32)
    imported = engine.kv.load(blob)
    assert (imported.num_written, imported.num_present, imported.refused) == (len(PROMPT) // BLOCK_SIZE, 0, None)
    check_blocks(engine)
    outputs = run(engine, [REQUEST])
    assert last(outputs, "r").num_cached_tokens == len(PROMPT) // BLOCK_SIZE * BLOCK_SIZE
    assert tokens(outputs, "r") == expected_tokens(REQUEST)
    assert executor.plans[0].num_tokens == len(PROMPT) % BLOCK_SIZE
    again = engine.kv.load(blob)
    assert (again.num_written, again.num_present) == (0, len(PROMPT) // BLOCK_SIZE)
    assert engine.stats().num_imported_blocks == len(PROMPT) // BLOCK_SIZE


def test_another_tenant_and_another_prompt_find_nothing_of_it() -> None:
    engine, _ = simulated_engine(64)
    engine.kv.load(exported())
    for request in (
        tiny_request("t", PROMPT, max_tokens=1, tenant="other"),
        tiny_request("p", [PROMPT[0] ^ 1, *PROMPT[1:]], max_tokens=1),
    ):
        assert last(run(engine, [request]), request.request_id).num_cached_tokens == 0


@pytest.mark.parametrize("damage", ["byte", "cut", "layout", "junk"])
def test_a_bad_blob_is_a_miss_that_is_counted(damage: str) -> None:
    blob = exported()
    size = 32 + 32 + 12 * BLOCK_SIZE
    middle = len(blob) - 3 * size + 70  # in the content of the fourth of six blocks
    bad = {
        "byte": blob[:middle] + bytes([blob[middle] ^ 1]) + blob[middle + 1 :],
        "cut": blob[:-1],
        "layout": encode("other", [(key, bytes(12 * BLOCK_SIZE)) for key in handle()]),
        "junk": random.Random(0).randbytes(500),
    }[damage]
    engine, _ = simulated_engine(32)
    imported = engine.kv.load(bad)
    assert imported.refused is not None
    assert imported.num_written == (3 if damage == "byte" else 0)
    assert engine.stats().num_refused_imports == 1
    outputs = run(engine, [REQUEST])
    assert last(outputs, "r").num_cached_tokens == imported.num_written * BLOCK_SIZE
    assert tokens(outputs, "r") == expected_tokens(REQUEST)


def test_an_import_takes_no_block_from_those_who_run_and_keeps_the_beginning_of_a_prefix() -> None:
    blob = exported()
    engine, _ = simulated_engine(8)
    running = tiny_request("running", [7] * 60, max_tokens=30, ignore_eos=True)
    engine.add(running)
    outputs = engine.step() + engine.step()
    num_free = engine.stats().kv_blocks_free
    imported = engine.kv.load(blob)
    assert imported.num_written == num_free == 4
    assert imported.refused is None
    assert engine.kv.export(handle()) == encode("simulated", list(decode(blob, "simulated"))[:4])  # type: ignore[arg-type]  # views are as good as bytes
    outputs += run(engine)
    assert len(tokens(outputs, "running")) == 30


def test_of_an_imported_prefix_the_end_is_forgotten_first() -> None:
    engine, _ = simulated_engine(8)
    assert engine.kv.load(exported()).num_written == 6
    run(engine, [tiny_request("other", [7] * 50, max_tokens=1)])
    assert [key for key, _ in decode(engine.kv.export(handle()), "simulated")] == handle()[:4]


def test_an_imported_block_is_not_cleared_for_what_it_held_before() -> None:
    blob = exported()
    engine, executor = simulated_engine(8)
    engine.add(tiny_request("bad", "x" * 100))
    executor.taint_next = True
    while engine.has_work:
        engine.step()
        executor.taint_next = True
    executor.taint_next = False
    assert engine.kv.load(blob).num_written == 6
    outputs = run(engine, [REQUEST])
    assert last(outputs, "r").num_cached_tokens == 96
    assert tokens(outputs, "r") == expected_tokens(REQUEST)
    assert len(executor.plans[-20].cleared) == 1


def test_a_running_request_is_exported_as_far_as_it_is_computed() -> None:
    engine, _ = simulated_engine(32, max_tokens_per_step=40)
    engine.add(REQUEST)
    assert engine.kv_keys("r") == []
    engine.step()
    assert engine.kv_keys("r") == handle()[:2]
    while len(engine.kv_keys("r")) < 7:
        engine.step()
    keys = engine.kv_keys("r")
    assert keys[:6] == handle()
    assert [key for key, _ in decode(engine.kv.export(keys), "simulated")] == keys
    assert engine.kv_keys("unknown") == engine.kv_keys("r", choice=1) == []


def test_without_a_prefix_cache_nothing_is_exported_or_imported() -> None:
    engine, _ = simulated_engine(32, prefix_cache=False)
    run(engine, [REQUEST])
    assert list(decode(engine.kv.export(handle()), "simulated")) == []
    assert engine.kv.load(exported()).refused is not None
    assert engine.stats().kv_blocks_free == 32


def test_kv_of_another_dtype_or_kind_of_processor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Engine = tiny_engine()
    run(engine, [REQUEST])
    blob = engine.kv.export(handle())
    refused = tiny_engine(torch.bfloat16).kv.load(blob).refused
    assert refused is not None
    assert "bfloat16" in refused
    other = tiny_engine()
    monkeypatch.setattr(features, "cpu_flags", lambda: frozenset({"avx2"}))
    assert other.kv.load(blob).refused is not None
    monkeypatch.undo()
    assert other.kv.load(blob).num_written == 6


SECOND_PROCESS = """
import sys
from pathlib import Path
from tests.engine.test_transfer import REQUEST, bits
from tests.engine.tiny import last, run, tiny_engine
engine = tiny_engine()
imported = engine.kv.load(Path(sys.argv[1]).read_bytes())
outputs = run(engine, [REQUEST])
print(imported.num_written, last(outputs, "r").num_cached_tokens, bits(outputs))
"""


def test_another_process_goes_on_from_imported_kv_with_the_very_same_bits(tmp_path: Path) -> None:
    engine: Engine = tiny_engine()
    expected = bits(run(engine, [REQUEST]))
    path = tmp_path / "kv"
    path.write_bytes(engine.kv.export(handle()))
    second = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert second.stdout == f"6 96 {expected}\n", second.stderr
