"""`headrace generate` and `headrace bench engine`: the engine alone, on a small model of random weights."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main
from models.catalog import DEFAULT_MODEL_PATH
from tests.consumers.worker.tiny_model import CONTEXT_LENGTH, write_tiny_model

FAST = ["--set", "engine.num_threads=1", "--set", "engine.kv_bytes=16777216"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options that choose the model."""
    return ["--gguf", str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")), *FAST]


@pytest.fixture(autouse=True)
def a_machine_without_headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings and no running stack."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.pop("HEADRACE_DEBUG", None)


def generate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """The object that `--json` writes."""
    assert main(["generate", *words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    (line,) = out.splitlines()
    decoded: dict[str, object] = json.loads(line)
    return decoded


def test_the_answer_is_on_stdout_and_the_figures_are_beside_it(
    capsys: pytest.CaptureFixture[str], tiny: list[str]
) -> None:
    words = ["generate", "abc", "--raw", "--max-tokens", "12", "--ignore-eos", "--seed", "3", *tiny]
    assert main(words) == 0
    live, figures = capsys.readouterr()
    assert "12 tokens" in figures
    assert "loaded in" in figures
    assert main([*words, "--no-stream"]) == 0
    assert capsys.readouterr().out == live
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choices"][0]["text"] + "\n" == live


def test_json_is_one_object_with_tokens_usage_and_times(capsys: pytest.CaptureFixture[str], tiny: list[str]) -> None:
    found = generate(capsys, "abc", "--raw", "--max-tokens", "9", "--ignore-eos", "--n", "3", *tiny)
    choices = found["choices"]
    assert isinstance(choices, list)
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert all(len(choice["token_ids"]) == 9 and choice["finish_reason"] == "length" for choice in choices)
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 27, "total_tokens": 30, "cached_tokens": 0}
    assert found["model"] == "tiny"
    timings, sampling = found["timings"], found["sampling"]
    assert isinstance(timings, dict)
    assert isinstance(sampling, dict)
    assert 0 < timings["ttft_ms"] <= timings["total_ms"]
    assert sampling["seed"] >= 0


def test_a_seed_makes_it_repeatable_and_none_makes_each_different(
    capsys: pytest.CaptureFixture[str], tiny: list[str]
) -> None:
    words = ["abc", "--raw", "--max-tokens", "16", "--ignore-eos", *tiny]
    fixed = [generate(capsys, *words, "--seed", "7")["choices"] for _ in range(2)]
    free = [generate(capsys, *words)["choices"] for _ in range(2)]
    assert fixed[0] == fixed[1]
    assert free[0] != free[1]


def test_what_is_piped_in_is_asked(
    capsys: pytest.CaptureFixture[str], tiny: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["--raw", "--temperature", "0", "--max-tokens", "5", *tiny]
    given = generate(capsys, "abc", *words)
    (tmp_path / "asked").write_text("abc")
    for text in ([], ["-"]):
        with (tmp_path / "asked").open() as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert generate(capsys, *text, *words)["choices"] == given["choices"]


def test_sampling_options_reach_the_engine(capsys: pytest.CaptureFixture[str], tiny: list[str]) -> None:
    options = {
        "--temperature": 0.5, "--top-p": 0.9, "--top-k": 5, "--min-p": 0.1, "--repetition-penalty": 1.2,
        "--presence-penalty": 0.3, "--frequency-penalty": -0.4, "--max-tokens": 4, "--seed": 6,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (name, str(value))]
    sampling = generate(capsys, "abc", "--raw", *words, "--stop", "x", "--stop", "yy", *tiny)["sampling"]
    assert isinstance(sampling, dict)
    asked = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
    assert {name: sampling[name] for name in asked} == asked
    assert sampling["stop"] == ["x", "yy"]


def test_an_answer_that_must_be_json_is(capsys: pytest.CaptureFixture[str], tiny: list[str], tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    words = ["abc", "--raw", "--json-schema", "schema.json", "--max-tokens", "60", *tiny]
    choices = generate(capsys, *words)["choices"]
    assert isinstance(choices, list)
    assert json.loads(choices[0]["text"])["a"] in (1, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["abc", "--raw", "--system", "x"], "takes no --system"),
        (["  "], "there is nothing to ask"),
        (["abc", "--response-format", "yaml"], "text or json"),
        (["abc", "--json-schema", "nowhere.json"], "cannot be read"),
        (["abc", "--model", "nobody"], "is not in models; there is: smollm2-135m-instruct"),
        (["abc", "--raw", "--max-tokens", str(CONTEXT_LENGTH)], "context"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(
    capsys: pytest.CaptureFixture[str], tiny: list[str], words: list[str], message: str
) -> None:
    assert main(["generate", *words, *(FAST if "--model" in words else tiny)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in " ".join(err.replace("│", " ").split())


def test_a_file_that_is_not_there_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "abc", "--gguf", "nowhere.gguf"]) == 1
    assert "nowhere.gguf" in capsys.readouterr().err


def test_a_step_that_raises_ends_the_command_with_1(
    capsys: pytest.CaptureFixture[str], tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("engine.executor.LocalExecutor.run", run)
    assert main(["generate", "abc", "--raw", *tiny]) == 1
    assert "planted" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_said_and_ends_with_130(
    capsys: pytest.CaptureFixture[str], tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine.engine import Engine

    words = ["generate", "abc", "--raw", "--ignore-eos", "--max-tokens", "9", "--seed", "3", *tiny]
    assert main(words) == 0
    whole = capsys.readouterr().out.rstrip("\n")
    step, num_steps = Engine.step, 0

    def interrupted(engine: Engine) -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 5:
            raise KeyboardInterrupt
        return step(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    assert main(words) == 130
    out, err = capsys.readouterr()
    assert whole.startswith(out.rstrip("\n"))
    assert "tokens" in err


def test_the_default_model_answers_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["What is the capital of France?", "--temperature", "0", "--max-tokens", "24"]
    by_name = generate(capsys, *asked)["choices"]
    by_file = generate(capsys, *asked, "--gguf", DEFAULT_MODEL_PATH)["choices"]
    assert by_name == by_file
    assert isinstance(by_name, list)
    assert "Paris" in by_name[0]["text"]


SMALL = ["bench", "engine", "--batch", "1,3", "--context", "20,40", "--steps", "8", "--repeats", "6"]


def test_bench_measures_each_batch_with_each_context(capsys: pytest.CaptureFixture[str], tiny: list[str]) -> None:
    assert main([*SMALL, "--json", *tiny]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["prompt_tokens"] for one in found["prefill"]] == [20, 40]
    assert [(one["batch"], one["context"]) for one in found["decode"]] == [(1, 20), (3, 20), (1, 40), (3, 40)]
    for one in found["decode"]:
        rate, step = one["tokens_per_s"], one["tpot_ms"]
        assert rate["low"] <= rate["median"] <= rate["high"]
        assert rate["high"] == pytest.approx(1000 * one["batch"] / step["low"])
        assert one["kv_bytes"] >= one["batch"] * one["context"] * found["memory"]["kv_bytes_per_token"]
    assert found["num_threads"] == 1
    assert found["memory"]["rss_peak_bytes"] >= found["memory"]["rss_loaded_bytes"] > 10_000_000


def test_bench_shows_tables_to_people(capsys: pytest.CaptureFixture[str], tiny: list[str]) -> None:
    assert main([*SMALL, *tiny]) == 0
    out = capsys.readouterr().out
    assert "prefill" in out
    assert "step = TPOT, ms" in out
    assert "█" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch", "1,x"], "no list of numbers above 0"),
        (["--batch", "0"], "no list of numbers above 0"),
        (["--context", str(CONTEXT_LENGTH)], "lower --context"),
        (["--batch", "60", "--context", "3000"], "--set engine.kv_bytes="),
    ],
)
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], tiny: list[str], words: list[str], message: str
) -> None:
    assert main(["bench", "engine", *words, *tiny]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
