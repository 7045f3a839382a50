"""All roles of `headrace up` in one process tree: started together, kept alive, stopped in order."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from headrace.local.role import OnChange, RestartPolicy, Role, RoleChange, RoleState, SupervisedRole, first_of
from schemas.errors import LocalStackError

__all__ = ["RestartPolicy", "Role", "RoleChange", "RoleState", "Supervisor"]

DEFAULT_POLICY = RestartPolicy()


def ignore_change(change: RoleChange) -> None:
    """The default for `on_change`: tells nobody."""


class Supervisor:
    """Runs one process for each role; its output goes to `log_dir/NAME.log`. Belongs to the event loop that starts it.

    `on_change` is called from the event loop at each change of a role's state.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        *,
        log_dir: Path,
        policy: RestartPolicy = DEFAULT_POLICY,
        on_change: OnChange = ignore_change,
    ) -> None:
        names = [role.name for role in roles]
        if len(set(names)) < len(names):
            raise LocalStackError(f"two roles have one name in {names}: their logs would be one file; name them apart")
        self._roles = [SupervisedRole(role, log_dir, policy, on_change) for role in roles]
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def __aenter__(self) -> "Supervisor":
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def states(self) -> dict[str, RoleState]:
        """The state of each role, by name, in the order in which they were given."""
        return {supervised.role.name: supervised.state for supervised in self._roles}

    def start(self) -> None:
        """Start all roles side by side."""
        self._tasks = [asyncio.create_task(role.run(), name=f"supervise {role.role.name}") for role in self._roles]

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until all roles are ready at once. Raises LocalStackError if one fails, all stop, or time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await first_of(self._all_ready, self.wait)
        except TimeoutError:
            late = [supervised.role.name for supervised in self._roles if not supervised.ready.is_set()]
            raise LocalStackError(f"not ready within {timeout_s:g} s: {', '.join(late)}; their logs say why") from None
        if not all(supervised.ready.is_set() for supervised in self._roles):
            raise LocalStackError("the roles were stopped before they were ready")

    async def wait(self) -> None:
        """Wait until all roles are stopped. Raises LocalStackError as soon as one fails for good."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop the roles, last first, each with its grace period; called once more meanwhile, end all at once.

        Never raises for a role that failed: `wait` and `on_change` tell of it.
        """
        if self._is_stopping:
            for supervised in self._roles:
                supervised.kill()
        self._is_stopping = True
        for supervised in self._roles:
            supervised.hold()
        for supervised, task in reversed(list(zip(self._roles, self._tasks, strict=True))):
            supervised.stop()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen: asyncio need not report it when the task is collected

    async def _all_ready(self) -> None:
        while not all(supervised.ready.is_set() for supervised in self._roles):
            for supervised in self._roles:
                await supervised.ready.wait()
