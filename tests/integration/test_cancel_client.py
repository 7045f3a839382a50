"""Cancels by client and command line, with gate and worker played record by record."""

import asyncio
import json
import signal
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from headrace import Client, Delta
from runtime.kafka import partition_for
from schemas.control import Cancel
from schemas.errors import HeadraceError, InvalidValue, RequestFailed
from schemas.settings import Settings
from tests.integration.responder import Asked, Responder
from tests.integration.test_cli import Cli, end, read

pytestmark = pytest.mark.integration


@pytest.fixture
def cli(settings: Settings, tmp_path: Path) -> Cli:
    return Cli(settings, tmp_path)


async def begin(responder: Responder, num_tokens: int = 2) -> Asked:
    """Begin to answer the next request."""
    asked = await responder.asked()
    await responder.delta(asked, 0, "begun", num_tokens=num_tokens)
    return asked


async def stop(responder: Responder, asked: Asked, num_tokens: int = 2) -> None:
    """End it as a worker ends what was cancelled."""
    await responder.delta(asked, num_tokens, "", num_tokens=0, finish_reason="cancelled")
    await responder.result(asked, "begun", num_tokens=num_tokens, status="cancelled")


async def test_a_cancel_stands_beside_the_request_and_names_it(client: Client, responder: Responder) -> None:
    for expected in (Cancel(request_id="r-1"), Cancel(request_id="r-2", session="s-1", reason="enough")):
        await client.cancel(expected.request_id, session=expected.session, reason=expected.reason)
        record, cancel = await responder.cancelled()
        assert cancel == expected
        assert record.key == expected.key.encode()
        assert record.partition == partition_for(record.key, 3)


async def test_a_cancelled_stream_ends_quietly_and_its_result_tells(client: Client, responder: Responder) -> None:
    stream = client.stream("hi", session="s-1")
    answering = asyncio.create_task(begin(responder))
    deltas: list[Delta] = []
    async for delta in stream:
        deltas.append(delta)
        if len(deltas) == 1:
            await client.cancel(stream.request_id, session="s-1")
            _, cancel = await responder.cancelled()
            assert (cancel.request_id, cancel.session) == (stream.request_id, "s-1")
            await stop(responder, await answering)
    assert [delta.finish_reason for delta in deltas] == [None, "cancelled"]
    assert stream.result is not None
    assert (stream.result.status, stream.result.text) == ("cancelled", "begun")


async def test_complete_raises_where_there_is_no_whole_answer(client: Client, responder: Responder) -> None:
    asking = asyncio.create_task(client.complete("hi"))
    await stop(responder, await begin(responder))
    with pytest.raises(RequestFailed, match="cancelled") as caught:
        await asking
    assert caught.value.result.status == "cancelled"
    assert caught.value.result.text == "begun"


@pytest.mark.parametrize(
    ("request_id", "session"), [("", None), ("x" * 400, None), ("r", "no session"), ("\ud800", None)]
)
async def test_what_can_be_no_request_is_refused(client: Client, request_id: str, session: str | None) -> None:
    with pytest.raises(InvalidValue, match="cannot be cancelled"):
        await client.cancel(request_id, session=session)


async def test_a_client_that_is_not_connected_says_so() -> None:
    with pytest.raises(HeadraceError, match="not connected"):
        await Client(bootstrap_servers="localhost:1").cancel("r")


async def chatting(cli: Cli, responder: Responder, process: Process) -> Asked:
    asked = await begin(responder)
    assert await read(process, 5) == "begun"
    return asked


async def test_ctrl_c_stops_the_answer_and_the_request(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--session", "s") as process:
        asked = await chatting(cli, responder, process)
        process.send_signal(signal.SIGINT)
        _, cancel = await responder.cancelled()
        assert (cancel.request_id, cancel.session) == (asked.request_id, "s")
        await stop(responder, asked)
        assert await end(process) == (130, "\n", "stopped after 2 tokens\n")


async def test_as_json_the_last_line_is_the_cancelled_result(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--json") as process:
        asked = await begin(responder)
        assert process.stdout is not None
        await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        await responder.cancelled()
        await stop(responder, asked)
        code, out, _ = await end(process)
    assert code == 130
    assert json.loads(out.splitlines()[-1])["status"] == "cancelled"


async def test_with_keep_ctrl_c_leaves_and_the_request_runs_on(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--keep") as process:
        asked = await chatting(cli, responder, process)
        process.send_signal(signal.SIGINT)
        code, out, err = await end(process)
    assert (code, out) == (130, "\n")
    assert err == f"it runs on: `headrace tail {asked.request_id}` shows its answer\n"
    async with Client(responder.settings) as client:
        await client.cancel("another")
    assert (await responder.cancelled())[1].request_id == "another"


async def test_where_nobody_answers_ctrl_c_does_not_wait_for_long_and_again_not_at_all(
    cli: Cli, responder: Responder
) -> None:
    for presses in (1, 2):
        async with cli.start("chat", "hi") as process:
            asked = await chatting(cli, responder, process)
            process.send_signal(signal.SIGINT)
            await responder.cancelled()
            if presses == 2:
                process.send_signal(signal.SIGINT)
            code, _, err = await end(process)
        assert code == 130
        assert (
            err == f"it was asked to stop and has not ended yet: `headrace tail {asked.request_id}` shows its answer\n"
        )


async def test_an_answer_that_somebody_else_cancels_is_an_error(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi") as process:
        await stop(responder, await begin(responder))
        assert await end(process) == (1, "begun\n", "error: the request was cancelled\n")


@pytest.mark.parametrize("as_json", [False, True])
async def test_cancel_waits_for_the_end_and_says_what_there_was(
    cli: Cli, responder: Responder, *, as_json: bool
) -> None:
    async with cli.start("chat", "hi", "--session", "s") as chat:
        asked = await chatting(cli, responder, chat)
        words = ["cancel", asked.request_id, "--session", "s", "--reason", "enough", *(["--json"] if as_json else [])]
        async with cli.start(*words) as process:
            _, cancel = await responder.cancelled()
            assert cancel.reason == "enough"
            await stop(responder, asked)
            code, out, err = await end(process)
    assert (code, err) == (0, "")
    if not as_json:
        assert out == f"{asked.request_id}: cancelled after 2 tokens\n"
        return
    report = json.loads(out)
    assert (report["outcome"], report["status"], report["session"]) == ("cancelled", "cancelled", "s")


async def test_a_late_cancel_is_told_from_the_result(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--json") as chat:
        asked = await begin(responder)
        await responder.result(asked, "begun", num_tokens=2)
        await end(chat)
    code, out, err = await cli.run("cancel", asked.request_id)
    assert (code, out, err) == (4, f"{asked.request_id}: too late, it had completed before\n", "")


async def test_an_id_that_nobody_knows_is_told_after_the_wait_with_what_to_do(cli: Cli, responder: Responder) -> None:
    code, out, err = await cli.run("cancel", "nobody", "--wait", "0.5")
    assert (code, out) == (3, "")
    assert err.startswith("nobody: nothing was heard of it within 0.5 s; ")
    assert "--session" in err
    assert "no gate and no pipeline and no worker is running" in err
    code, out, _ = await cli.run("cancel", "nobody", "--wait", "0.5", "--json")
    assert (code, json.loads(out)["outcome"], json.loads(out)["status"]) == (3, "unheard", None)


async def test_one_that_goes_on_is_told_as_that(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi") as chat:
        asked = await chatting(cli, responder, chat)
        code, out, err = await cli.run("cancel", asked.request_id, "--wait", "1")
    assert (code, out) == (1, "")
    assert err.startswith(f"{asked.request_id}: it has not ended within 1 s; ")


async def test_what_can_be_no_id_is_wrong_usage(cli: Cli, responder: Responder) -> None:
    code, _, err = await cli.run("cancel", "r", "--session", "no session")
    assert code == 2
    assert err.startswith("error: this cannot be cancelled")
