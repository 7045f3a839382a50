"""A role for tests of the life of a process: `python role_process.py WAY` goes wrong, or right, in one way."""

import asyncio
import sys

from runtime.health import Health
from runtime.logging import configure, get_logger
from runtime.role import Role, run_role
from schemas.errors import SettingsError
from schemas.settings import LoggingSettings

log = get_logger(__name__)


class ExampleRole(Role):
    """Does nothing, in the way that it is told."""

    name = "example"

    def __init__(self, way: str) -> None:
        self._way = way
        self._stopped = asyncio.Event()

    async def start(self) -> None:
        if self._way == "start-hangs":
            log.info("hanging")
            try:
                await asyncio.Event().wait()
            finally:
                log.info("start_cleaned_up")
        if self._way == "start-refuses":
            raise SettingsError("topics are missing: create them")
        if self._way == "start-breaks":
            raise ValueError("a fault")

    async def run(self) -> None:
        if self._way == "run-breaks":
            raise ValueError("a fault")
        if self._way == "run-ends":
            return
        await self._stopped.wait()

    async def stop(self) -> None:
        log.info("stop_called")
        if self._way == "stop-hangs":
            await asyncio.Event().wait()
        if self._way == "stop-breaks":
            raise ValueError("a second fault")
        self._stopped.set()

    def health(self) -> Health:
        return Health(is_ready=True)


if __name__ == "__main__":
    configure(LoggingSettings(format="json"), role="example")
    sys.exit(asyncio.run(run_role(ExampleRole(sys.argv[1]), metrics_port=0)))
