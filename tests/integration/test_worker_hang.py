"""A worker whose engine hangs: it says so, ends, and another one serves what it had."""

import asyncio
import http.client
import json
from typing import Any

import pytest

from headrace.local.background import BackgroundStack
from schemas.tokens import Released
from tests.consumers.worker.live import Outside
from tests.consumers.worker.oracle import undisturbed
from tests.consumers.worker.pace import HANG_TOKEN
from tests.consumers.worker.processes import WorkerProcess
from tests.consumers.worker.settings import worker_settings
from tests.consumers.worker.tiny_model import TinyModel

pytestmark = pytest.mark.integration

POLL_S = 0.05


def ask_health(port: int) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


async def red_health(port: int) -> dict[str, Any]:
    """What health says when it has turned red."""
    while True:
        status, body = await asyncio.to_thread(ask_health, port)
        if status == http.client.SERVICE_UNAVAILABLE:
            return body
        await asyncio.sleep(POLL_S)


async def test_a_worker_that_hangs_turns_red_and_ends_and_its_requests_are_served_by_another(
    stack: BackgroundStack, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tiny = TinyModel.write(tmp_path_factory.mktemp("model"))
    settings = worker_settings(stack, namespace, tiny, step_stall_s=1.0, step_exit_s=4.0)
    members = [tiny.member(f"r{i}", sampling={"max_tokens": 200}, prompt_token_ids=[i + 1]) for i in range(4)]
    members.append(tiny.member("hangs", prompt_token_ids=[HANG_TOKEN]))
    async with Outside(settings) as outside:
        async with WorkerProcess(settings, run="run_or_hang") as hanging:
            await outside.taken_over(hanging.name, outside.sources())
            assert (await asyncio.to_thread(ask_health, hanging.health_port))[0] == http.client.OK
            for member in members[:-1]:
                outside.send(member)
                await outside.begun(member.envelope.request_id)
            outside.send(members[-1])
            red = await red_health(hanging.health_port)
            assert not red["is_alive"]
            assert "a step of the engine has taken" in red["detail"]
            assert await hanging.ended() == 1
        log = "".join(hanging.lines)
        assert "engine_hangs" in log
        assert "run_or_hang" in log  # where the thread stood
        async with WorkerProcess(settings):
            expected = await asyncio.to_thread(undisturbed, settings, tiny, members)
            for member in members:
                name = member.envelope.request_id
                result = await outside.result(name)
                assert (result.status, result.attempts) == ("completed", 2)
                assert outside.stream(name) == expected[name]
        assert not [record for _, record in outside.journal() if isinstance(record, Released)]
