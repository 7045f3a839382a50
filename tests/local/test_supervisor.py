"""Roles are kept alive until they are to stop, and then never started again."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.local.ports import lease_ports
from headrace.local.supervisor import RestartPolicy, Role, RoleChange, RoleState, Supervisor
from schemas.errors import LocalStackError
from tests.local.conftest import NewChildren
from tests.local.processes import survivors, until

QUICK = RestartPolicy(first_delay_s=0.001, max_delay_s=0.01)
FOREVER = ("sleep", "1000")
DEAF = ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.01; done")


class Recorder:
    """Every change in order, and a way to wait for one."""

    def __init__(self) -> None:
        self.changes: list[RoleChange] = []

    def __call__(self, change: RoleChange) -> None:
        self.changes.append(change)

    def of(self, role: str) -> list[RoleState]:
        return [change.state for change in self.changes if change.role == role]

    async def until_state(self, role: str, state: RoleState, times: int = 1) -> RoleChange:
        await until(lambda: self.of(role).count(state) >= times)
        return [change for change in self.changes if (change.role, change.state) == (role, state)][times - 1]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def shell(name: str, script: str) -> Role:
    return Role(name, ("sh", "-c", script))


async def test_a_role_is_ready_when_it_says_so_and_not_before(tmp_path: Path, recorder: Recorder) -> None:
    with lease_ports(("web",), book=tmp_path / "ports.json") as ports:
        flag = tmp_path / "flag"
        command = (sys.executable, "tests/local/role_server.py", str(ports["web"]), str(flag))
        role = Role("web", command, ready_port=ports["web"])
        async with Supervisor([role], log_dir=tmp_path, on_change=recorder) as supervisor:
            log = tmp_path / "web.log"
            await until(lambda: log.exists() and log.read_text().count(" 503 ") >= 2)
            assert recorder.of("web") == [RoleState.STARTING]
            flag.touch()
            await supervisor.wait_ready()
            assert supervisor.states == {"web": RoleState.READY}
    assert recorder.of("web") == [RoleState.STARTING, RoleState.READY, RoleState.STOPPING, RoleState.STOPPED]


async def test_a_role_that_is_not_ready_in_time_is_named(tmp_path: Path) -> None:
    with lease_ports(("web",), book=tmp_path / "ports.json") as ports:
        roles = [Role("fine", FOREVER), Role("mute", FOREVER, ready_port=ports["web"])]
        async with Supervisor(roles, log_dir=tmp_path) as supervisor:
            with pytest.raises(LocalStackError, match=r"not ready within 0.3 s: mute;"):
                await supervisor.wait_ready(timeout_s=0.3)


async def test_a_dead_role_is_started_again_and_the_others_are_left_alone(tmp_path: Path, recorder: Recorder) -> None:
    roles = [Role("a", FOREVER), Role("b", FOREVER)]
    async with Supervisor(roles, log_dir=tmp_path, policy=QUICK, on_change=recorder) as supervisor:
        await supervisor.wait_ready()
        first = await recorder.until_state("a", RoleState.READY)
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        second = await recorder.until_state("a", RoleState.READY, times=2)
        assert second.pid != first.pid
        await supervisor.wait_ready()
        assert recorder.of("b") == [RoleState.STARTING, RoleState.READY]
    assert "code -9" in next(change.detail for change in recorder.changes if change.state == RoleState.RESTARTING)


async def test_a_role_that_ends_well_is_started_again_too(tmp_path: Path, recorder: Recorder) -> None:
    async with Supervisor([shell("a", "exit 0")], log_dir=tmp_path, policy=QUICK, on_change=recorder):
        await recorder.until_state("a", RoleState.STARTING, times=2)


async def test_a_role_that_keeps_dying_is_given_up_with_the_end_of_its_log(tmp_path: Path, recorder: Recorder) -> None:
    roles = [shell("bad", "echo cannot find the weights >&2; exit 3"), Role("good", FOREVER)]
    async with Supervisor(roles, log_dir=tmp_path, policy=QUICK, on_change=recorder) as supervisor:
        with pytest.raises(LocalStackError, match=r"(?s)bad ended 5 times.* code 3.*cannot find the weights"):
            await supervisor.wait()
        assert supervisor.states["bad"] == RoleState.FAILED
        assert recorder.of("bad").count(RoleState.STARTING) == 5
        with pytest.raises(LocalStackError):
            await supervisor.wait_ready()
    assert supervisor.states == {"bad": RoleState.FAILED, "good": RoleState.STOPPED}


async def test_a_life_that_was_long_enough_forgives_the_deaths_before(tmp_path: Path, recorder: Recorder) -> None:
    policy = RestartPolicy(first_delay_s=0.001, max_delay_s=0.01, healthy_after_s=0.0, max_quick_deaths=2)
    async with Supervisor([shell("a", "exit 1")], log_dir=tmp_path, policy=policy, on_change=recorder):
        await recorder.until_state("a", RoleState.STARTING, times=4)


async def test_a_command_that_cannot_be_executed_fails_at_once(tmp_path: Path, recorder: Recorder) -> None:
    role = Role("a", (str(tmp_path / "absent"),))
    async with Supervisor([role], log_dir=tmp_path, on_change=recorder) as supervisor:
        with pytest.raises(LocalStackError, match="absent: No such file"):
            await supervisor.wait_ready()
    assert recorder.of("a") == [RoleState.FAILED]


async def test_roles_stop_last_first_one_after_the_other(tmp_path: Path, recorder: Recorder) -> None:
    roles = [Role(name, FOREVER) for name in ("a", "b", "c")]
    async with Supervisor(roles, log_dir=tmp_path, on_change=recorder) as supervisor:
        await supervisor.wait_ready()
        recorder.changes.clear()
        await supervisor.stop()
        await supervisor.wait()
    order = [(change.role, change.state) for change in recorder.changes]
    assert order == [(name, state) for name in "cba" for state in (RoleState.STOPPING, RoleState.STOPPED)]


async def test_a_role_that_dies_while_others_stop_is_not_started_again(tmp_path: Path, recorder: Recorder) -> None:
    roles = [Role("early", FOREVER), Role("deaf", DEAF)]
    async with Supervisor(roles, log_dir=tmp_path, policy=QUICK, on_change=recorder) as supervisor:
        await supervisor.wait_ready()
        await until(lambda: "deaf" in (tmp_path / "deaf.log").read_text())
        stopping = asyncio.create_task(supervisor.stop())
        await recorder.until_state("deaf", RoleState.STOPPING)
        early = recorder.changes[[change.role for change in recorder.changes].index("early")].pid
        assert early is not None
        os.kill(early, signal.SIGKILL)
        await recorder.until_state("early", RoleState.STOPPED)
        assert not stopping.done()
        await supervisor.stop()
        await stopping
    assert recorder.of("early") == [RoleState.STARTING, RoleState.READY, RoleState.STOPPED]


async def test_a_second_stop_ends_all_at_once(tmp_path: Path, recorder: Recorder, new_children: NewChildren) -> None:
    roles = [Role(name, DEAF, stop_grace_s=1000) for name in ("a", "b")]
    async with Supervisor(roles, log_dir=tmp_path, on_change=recorder) as supervisor:
        await supervisor.wait_ready()
        await until(lambda: all("deaf" in (tmp_path / f"{name}.log").read_text() for name in "ab"))
        processes = new_children()
        first = asyncio.create_task(supervisor.stop())
        await recorder.until_state("b", RoleState.STOPPING)
        await supervisor.stop()
        await first
    assert survivors(processes) == []
    assert supervisor.states == {"a": RoleState.STOPPED, "b": RoleState.STOPPED}


async def test_a_stop_ends_the_pause_before_a_restart(tmp_path: Path, recorder: Recorder) -> None:
    policy = RestartPolicy(first_delay_s=1000, max_delay_s=1000)
    async with Supervisor([shell("a", "exit 1")], log_dir=tmp_path, policy=policy, on_change=recorder):
        await recorder.until_state("a", RoleState.RESTARTING)
    assert recorder.of("a")[-2:] == [RoleState.RESTARTING, RoleState.STOPPED]


@pytest.mark.parametrize("num_turns", range(0, 30, 3))
async def test_a_stop_at_any_moment_of_a_start_leaves_nothing(
    num_turns: int, tmp_path: Path, new_children: NewChildren
) -> None:
    supervisor = Supervisor([Role("a", FOREVER)], log_dir=tmp_path)
    supervisor.start()
    for _ in range(num_turns):
        await asyncio.sleep(0.001)
    await supervisor.stop()
    assert supervisor.states == {"a": RoleState.STOPPED}
    assert new_children() == []


async def test_a_supervisor_whose_owner_is_cancelled_leaves_nothing(
    tmp_path: Path, recorder: Recorder, new_children: NewChildren
) -> None:
    async def own() -> None:
        async with Supervisor([Role("a", FOREVER)], log_dir=tmp_path, on_change=recorder) as supervisor:
            await supervisor.wait()

    owner = asyncio.create_task(own())
    await recorder.until_state("a", RoleState.READY)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert new_children() == []


async def test_a_role_has_our_environment_and_its_own(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "one")
    role = Role("a", ("sh", "-c", "echo $OURS $ITS; exec sleep 1000"), env={"ITS": "two"})
    async with Supervisor([role], log_dir=tmp_path):
        await until(lambda: (tmp_path / "a.log").exists() and (tmp_path / "a.log").read_text() == "one two\n")


def test_two_roles_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match="name them apart"):
        Supervisor([Role("a", FOREVER), Role("a", FOREVER)], log_dir=tmp_path)


@given(st.integers(min_value=0, max_value=10_000))
def test_the_pause_doubles_from_the_first_to_the_longest(num_quick_deaths: int) -> None:
    policy = RestartPolicy()
    delay_s, next_delay_s = policy.delay_s(num_quick_deaths), policy.delay_s(num_quick_deaths + 1)
    assert policy.first_delay_s <= delay_s <= policy.max_delay_s
    assert next_delay_s in (delay_s, 2 * delay_s, policy.max_delay_s)
    assert policy.delay_s(1) == policy.first_delay_s
