"""The pool with real child processes, killed, hung and broken in the ways that happen."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from models.catalog import open_model
from models.prompt import build_prompt
from pipeline import prompt_process, tokenize
from pipeline.context import ChatPrompt, PromptJob, TextPrompt
from pipeline.tokenize import PromptPool
from schemas.errors import ContextTooLong, InvalidValue, ModelFileError, PromptFault, RequestError
from schemas.requests import Message
from schemas.settings import DEFAULT_MODEL, DEFAULT_MODEL_PATH
from tests.models.gguf_writer import write_gguf
from tests.pipeline.conftest import HANG
from tests.tied import tied

LONG = Message(role="user", content="x" * 10_000)


def chat(content: str, model: str = DEFAULT_MODEL, history: list[int] | None = None) -> ChatPrompt:
    messages = [Message(role="user", content=content)]
    return ChatPrompt(model=model, messages=messages, history=history or [], max_prompt_tokens=8191, now_ms=0)


async def test_prompts_are_those_of_the_model_itself() -> None:
    model = open_model(DEFAULT_MODEL, DEFAULT_MODEL_PATH)
    pool = PromptPool({DEFAULT_MODEL: DEFAULT_MODEL_PATH}, num_processes=2)
    await pool.start()
    texts = [f"Tell me about the number {i}. <|im_end|>" for i in range(20)]
    built = await asyncio.gather(*(pool.build(chat(text)) for text in texts))
    expected = [
        build_prompt(model.tokenizer, model.template, [{"role": "user", "content": text}]).token_ids for text in texts
    ]
    facts = await pool.facts(DEFAULT_MODEL)
    pids = pool.pids
    await pool.stop()
    assert built == expected
    assert (facts.context_length, facts.hashes) == (model.spec.context_length, model.hashes)
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_turn_goes_on_from_the_history_as_it_is(pool: PromptPool) -> None:
    history = [1, 2, 3, 258, 257]
    for job in (
        chat("hi", "tiny", history),
        TextPrompt(model="tiny", text="hi", history=history, max_prompt_tokens=99),
    ):
        built = await pool.build(job)
        assert built[: len(history)] == history
        assert len(built) > len(history)


@pytest.mark.parametrize(
    ("job", "param"),
    [
        (ChatPrompt(model="tiny", messages=[LONG], history=[], max_prompt_tokens=127, now_ms=0), "messages"),
        (TextPrompt(model="tiny", text=LONG.text, history=[], max_prompt_tokens=127), "prompt"),
    ],
    ids=["chat", "text"],
)
async def test_an_error_of_the_request_comes_back_as_what_it_is(pool: PromptPool, job: PromptJob, param: str) -> None:
    with pytest.raises(ContextTooLong, match="127") as caught:
        await pool.build(job)
    assert caught.value.param == param
    assert await pool.build(chat("still here", "tiny"))


@pytest.mark.parametrize("kind", RequestError.__subclasses__(), ids=lambda kind: kind.code)
def test_no_error_of_a_request_loses_its_kind_on_the_way_from_a_child(kind: type[RequestError]) -> None:
    error = prompt_process.error_of(kind("no", param="p").body)
    assert (type(error), error.message, error.param) == (kind, "no", "p")


async def test_what_a_template_refuses_is_the_request_s_fault(tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    pool = PromptPool({"m": str(write_gguf(tmp_path / "m.gguf", tokenizer__chat_template=template))}, num_processes=1)
    await pool.start()
    with pytest.raises(InvalidValue, match="roles must alternate"):
        await pool.build(chat("hi", "m"))
    await pool.stop()


async def test_a_killed_child_is_replaced_and_what_it_had_is_built_by_the_next(pool: PromptPool) -> None:
    (victim,) = pool.pids
    os.kill(victim, signal.SIGSTOP)
    calls = [asyncio.create_task(pool.build(chat(f"{i}", "tiny"))) for i in range(10)]
    await asyncio.sleep(0)
    os.kill(victim, signal.SIGKILL)
    prompts = await asyncio.gather(*calls)
    assert len({tuple(prompt) for prompt in prompts}) == 10
    assert pool.pids != [victim]
    assert not psutil.pid_exists(victim)


async def test_a_prompt_that_hangs_is_refused_after_its_second_death_and_nobody_else_suffers(pool: PromptPool) -> None:
    (first_child,) = pool.pids
    others = [f"{i}" for i in range(6)]
    results = await asyncio.gather(
        *(pool.build(chat(text, "tiny")) for text in [*others[:3], HANG, *others[3:]]), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, BaseException)]
    assert [type(error) for error in refused] == [PromptFault]
    assert isinstance(results[3], PromptFault)
    assert pool.pids != [first_child]


async def test_interactive_prompts_go_first_and_bulk_ones_do_not_starve(pool: PromptPool) -> None:
    finished: list[str] = []

    async def build(name: str, lane: str) -> None:
        await pool.build(chat(name, "tiny"), lane=lane)  # type: ignore[arg-type]
        finished.append(name)

    bulk = [asyncio.create_task(build(f"b{i}", "bulk")) for i in range(40)]
    interactive = [asyncio.create_task(build(f"i{i}", "interactive")) for i in range(40)]
    await asyncio.gather(*bulk, *interactive)
    middle = finished[8:40]
    assert sum(name.startswith("i") for name in middle) > len(middle) / 2
    assert sum(name.startswith("b") for name in middle) >= len(middle) / 8


async def test_a_call_that_nobody_waits_for_any_more_is_not_built(pool: PromptPool) -> None:
    """Were it built, the child would die of it."""
    (child,) = pool.pids
    os.kill(child, signal.SIGSTOP)
    calls = [asyncio.create_task(pool.build(chat(f"{i}", "tiny"))) for i in range(8)]
    hanging = asyncio.create_task(pool.build(chat(HANG, "tiny")))
    await asyncio.sleep(0)
    hanging.cancel()
    os.kill(child, signal.SIGCONT)
    assert len(await asyncio.gather(*calls)) == 8
    assert await pool.build(chat("after it", "tiny"))
    assert pool.pids == [child]


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
async def test_a_model_that_cannot_be_loaded_fails_the_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    pool = PromptPool({"m": str(path)}, num_processes=1)
    with pytest.raises(ModelFileError, match=r"model\.gguf"):
        await pool.start()
    await pool.stop()


async def test_children_that_cannot_be_replaced_end_the_pool(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    pool = PromptPool({"m": str(path)}, num_processes=1)
    await pool.start()
    path.unlink()
    os.kill(pool.pids[0], signal.SIGKILL)
    with pytest.raises(ModelFileError):
        await pool.run()
    await pool.stop()


async def test_models_that_take_for_ever_to_load_are_given_up_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file on a network folder that hangs: nobody writes into this pipe."""
    monkeypatch.setattr(prompt_process, "_LOAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(tokenize, "_MAX_FAILED_STARTS", 1)
    os.mkfifo(tmp_path / "model.gguf")
    pool = PromptPool({"m": str(tmp_path / "model.gguf")}, num_processes=1)
    with pytest.raises(PromptFault, match=r"did not load its models in 0\.5 s"):
        await pool.start()
    await pool.stop()
    assert multiprocessing.active_children() == []


async def test_a_watcher_that_is_cancelled_does_not_stop_the_pool(pool: PromptPool) -> None:
    watcher = asyncio.create_task(pool.run())
    await asyncio.sleep(0)
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)
    assert await pool.build(chat("still here", "tiny"))


async def test_children_end_with_a_parent_that_is_killed(tiny_model: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from pipeline.tokenize import PromptPool\n"
        "async def main():\n"
        f"    pool = PromptPool({{'tiny': {tiny_model!r}}}, num_processes=2)\n"
        "    await pool.start()\n"
        "    print(*pool.pids, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    script = Path(tiny_model).with_name("parent.py")
    script.write_text(code)
    parent = psutil.Popen(tied(sys.executable, script), stdout=subprocess.PIPE)
    children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone, alive = psutil.wait_procs(children, timeout=20)
    assert (len(gone), alive) == (2, [])
