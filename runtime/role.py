"""How a process of one role lives: logging, health, start, wait for a signal or a failure, stop in order, exit code."""

import asyncio
import os
import signal
from abc import ABC, abstractmethod

from aiokafka.errors import KafkaConnectionError

from runtime.health import Health, HealthServer
from runtime.logging import get_logger
from schemas.errors import HeadraceError
from schemas.settings import LOOPBACK

log = get_logger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_ABORTED = 130


class Role(ABC):
    """One process of one role. `run` returns when `stop` was asked for and the work is handed over."""

    name: str

    @abstractmethod
    async def start(self) -> None:
        """Connect, and be able to work when this returns. A failure ends the process."""

    @abstractmethod
    async def run(self) -> None:
        """Work until `stop` is called. An exception ends the process with exit code 1."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop taking work, hand over or finish what is under way, close what `start` opened."""

    @abstractmethod
    def health(self) -> Health:
        """How the role is now. Called from another thread: reads only."""


async def run_role(role: Role, *, metrics_port: int, metrics_host: str = LOOPBACK) -> int:
    """Run one role to its end and give the exit code.

    The first SIGTERM or SIGINT stops in good order; a second one ends the process at once.
    """
    stopping = asyncio.Event()
    _handle_signals(stopping)
    health = HealthServer(role.health, host=metrics_host, port=metrics_port)
    health.start()
    log.info("starting", metrics_host=metrics_host, metrics_port=health.port)
    try:
        return await _live(role, stopping)
    finally:
        health.stop()


async def _live(role: Role, stopping: asyncio.Event) -> int:
    signalled = asyncio.create_task(stopping.wait())
    started = asyncio.create_task(role.start())
    code = EXIT_OK
    try:
        await asyncio.wait({started, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            await asyncio.gather(started, return_exceptions=True)
            return EXIT_OK
        started.result()
        log.info("ready")
        running = asyncio.create_task(role.run())
        await asyncio.wait({running, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            log.info("stopping")
            await role.stop()
        await running
    except KafkaConnectionError as error:
        log.error("failed", error=f"Kafka does not answer ({error}): is kafka.bootstrap_servers right?")  # noqa: TRY400
        code = EXIT_FAILED
        await _stop_after_failure(role)
    except HeadraceError as error:
        # Our own errors say what to do: a traceback would bury it.
        log.error("failed", error=error.message, code=error.code)  # noqa: TRY400 (see above)
        code = EXIT_FAILED
        await _stop_after_failure(role)
    except Exception:
        log.exception("failed")
        code = EXIT_FAILED
        await _stop_after_failure(role)
    finally:
        signalled.cancel()
    log.info("stopped", exit_code=code)
    return code


async def _stop_after_failure(role: Role) -> None:
    try:
        await role.stop()
    except Exception:
        # Already failing: a second fault is logged beside the first and does not hide it.
        log.exception("stop_failed")


def _handle_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(EXIT_ABORTED)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
