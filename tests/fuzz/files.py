"""Whatever stands in a file that we read: weights with their vocabulary, settings, the local stack's small files."""

import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from headrace.local.endpoints import FILE_NAME, Endpoints, read_endpoints
from headrace.local.identity import ProcessIdentity
from headrace.local.kafka_jars import MARKER, _is_complete
from headrace.local.lock import LOCK_NAME, OwnedLock
from headrace.local.ports import lease_ports
from headrace.local.s3 import load_credentials
from models.catalog import open_model
from runtime.config import load_settings, setting_lines
from schemas.errors import InvalidValue, LocalStackError, ModelFileError, SettingsError
from schemas.names import Names
from schemas.topics import registry
from tests.fuzz.damage import altered, damaged_bytes, json_bytes
from tests.fuzz.target import Target, must
from tests.models.gguf_writer import METADATA, write_gguf


@contextmanager
def _file(content: bytes, name: str = "file") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        yield path


def _opens_or_says_so(path: Path) -> None:
    """A model that opens also works: text goes in and comes out, or is refused."""
    try:
        model = open_model("fuzzed", str(path))
    except ModelFileError as error:
        must(str(path) in error.message, error.message)
        return
    try:
        token_ids = model.tokenizer.encode("hello, <|im_end|> wörld 🌊", special=True)
    except InvalidValue:
        return
    assert all(0 <= token_id < model.tokenizer.vocab_size for token_id in token_ids)
    model.tokenizer.decode(token_ids)


def _check_weights(content: bytes) -> None:
    with _file(content, "model.gguf") as path:
        _opens_or_says_so(path)


@st.composite
def _metadata(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(METADATA)), min_size=1, max_size=3, unique=True))
    return {name: draw(altered(METADATA[name], _METADATA_VALUES)) for name in names}


_METADATA_VALUES = [
    *(None, True, 0, 1, 2**31, 2**32 - 1, 0.0, -1.0, 1e30, float("nan"), float("inf"), "", "x", "{{", "{% if %}"),
    *([], ["a"], ["", ""], [1.5], [1], [True]),
]


def _check_metadata(changes: dict[str, Any]) -> None:
    """A file that is well made and says what no model is."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        try:
            write_gguf(path, **{name.replace(".", "__"): value for name, value in changes.items()})
        except (ValueError, TypeError, OverflowError, struct.error):
            return  # the format has no such value
        _opens_or_says_so(path)


@cache
def _whole() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        tensors = {"token_embd.weight": np.zeros((264, 64), dtype=np.float32)}
        return write_gguf(Path(folder) / "whole.gguf", tensors=tensors).read_bytes()


SETTINGS = b"""
[kafka]
bootstrap_servers = "127.0.0.1:9092"
session_timeout_ms = 6000
[topics]
namespace = "fuzz"
partitions = 3
retention_hours = 12.5
[models.tiny]
path = "tiny.gguf"
context_length = 128
[worker]
model = "tiny"
[logging]
level = "info"
"""
_TOML_TOKENS = st.sampled_from(
    [
        *(b"= inf", b"= nan", b"= -1", b"= 1e400", b"= true", b'= ""', b"= 0x", b"= []", b"= {}", b"= 1979-05-27"),
        *(b"= " + b"9" * 5_000, b"= [" + b"[" * 2_000, b"= 9223372036854775807", b"= '''"),
        *(b"\n[models]\n", b"\n[[kafka]]\n"),
    ]
)


@st.composite
def _toml(draw: st.DrawFn) -> bytes:
    lines = SETTINGS.splitlines()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(lines) - 1))
        name = lines[place].partition(b"=")[0]
        lines[place] = name + draw(_TOML_TOKENS)
    return b"\n".join(lines)


def _check_settings(content: bytes) -> None:
    """Settings that load can be used: shown, and made into topics."""
    with _file(content, "headrace.toml") as path:
        try:
            loaded = load_settings(path, {})
        except SettingsError as error:
            must(error.message, error)
            return
        setting_lines(loaded)
        settings = loaded.settings
        registry(Names(settings.topics.namespace, settings.topics.generation), settings.topics, settings.models)


def _check_environment(env: dict[str, str]) -> None:
    try:
        setting_lines(load_settings(None, {"HEADRACE_CONFIG": "", **env}))
    except SettingsError as error:
        must(error.message, error)


_env_names = st.sampled_from(
    [
        *("HEADRACE_KAFKA__SESSION_TIMEOUT_MS", "HEADRACE_TOPICS__RETENTION_HOURS", "HEADRACE_MODELS__TINY__PATH"),
        *("HEADRACE_MODELS__", "HEADRACE___", "HEADRACE_KAFKA", "HEADRACE_WORKER__MODEL", "HEADRACE_TOPICS__NAMESPACE"),
    ]
)
_env_values = st.text(max_size=20) | st.sampled_from(["inf", "nan", "1e400", "9" * 5_000, "[" * 2_000, "\x00", "-1"])


def _state(read: Callable[[Path], object], name: str) -> Callable[[bytes], None]:
    def check(content: bytes) -> None:
        with _file(content, name) as path:
            try:
                read(path)
            except LocalStackError as error:
                must(str(path) in error.message, error.message)

    return check


def _lease(book: Path) -> None:
    lease_ports(("kafka", "controller"), book=book).release()


_ENDPOINTS = Endpoints(
    bootstrap_servers="127.0.0.1:1",
    s3_endpoint="127.0.0.1:2",
    access_key="a",
    secret_key="s",
    bucket="headrace",
    pid=1,
    started_ticks=5,
)
_STATES: list[tuple[str, bytes, Callable[[Path], object]]] = [
    (FILE_NAME, msgspec.json.encode(_ENDPOINTS), lambda path: read_endpoints(path.parent)),
    (LOCK_NAME, msgspec.json.encode(ProcessIdentity(1, 5)), lambda path: OwnedLock(path).owner()),
    ("ports.json", b'{"kafka":20001,"controller":20002}', _lease),
    ("s3.json", b'{"access_key":"a","secret_key":"b"}', load_credentials),
    (MARKER, b'{"pom_sha256":"ab","jars":{"kafka.jar":12}}', lambda path: _is_complete(path.parent)),
]

TARGETS = [
    Target("a model's file opens or is refused", st.deferred(lambda: damaged_bytes([_whole()])), _check_weights),
    Target("a model's metadata is sound or refused", _metadata(), _check_metadata),
    Target("a settings file is read or refused", _toml() | damaged_bytes([SETTINGS]), _check_settings),
    Target(
        "the environment is read or refused", st.dictionaries(_env_names, _env_values, max_size=3), _check_environment
    ),
    *(
        Target(f"{name} of the local stack is read or refused", json_bytes([valid]), _state(read, name))
        for name, valid, read in _STATES
    ),
]
