"""Stopping an answer of `headrace chat` on a real terminal: by Ctrl-C, by /stop, and typing while it streams."""

import signal
from pathlib import Path

import pytest

from schemas.settings import Settings
from tests.integration.responder import Asked, Responder
from tests.integration.test_cli import Cli
from tests.integration.test_cli_terminal import CTRL_C, CTRL_D, ENTER, Terminal, terminal

pytestmark = pytest.mark.integration


async def ask(screen: Terminal, responder: Responder, text: str) -> Asked:
    """Ask, and see the answer begin."""
    await screen.until("› ")
    screen.type(text + ENTER)
    asked = await responder.asked()
    assert asked.request.messages[-1].text == text
    await responder.delta(asked, 0, "begun ")
    await screen.until("begun ")
    return asked


async def cancelled(responder: Responder, asked: Asked) -> None:
    """The cancel of this very request arrives, and is obeyed as by a worker."""
    _, cancel = await responder.cancelled()
    assert (cancel.request_id, cancel.session) == (asked.request_id, asked.request.session)
    await responder.delta(asked, 1, "", num_tokens=0, finish_reason="cancelled")
    await responder.result(asked, "begun ", status="cancelled")


@pytest.mark.parametrize("keys", [CTRL_C, "/stop" + ENTER], ids=["Ctrl-C", "/stop"])
async def test_an_answer_is_stopped_and_the_chat_goes_on(
    settings: Settings, responder: Responder, tmp_path: Path, keys: str
) -> None:
    with terminal(Cli(settings, tmp_path), "chat", "--system", "Be kind.") as screen:
        asked = await ask(screen, responder, "long")
        screen.type(keys)
        await cancelled(responder, asked)
        await screen.until("stopped after 1 tokens")
        # The session has forgotten the turn, so the system message is still to be said.
        second = await ask(screen, responder, "next")
        assert [message.role for message in second.request.messages] == ["system", "user"]
        assert second.request.session == asked.request.session
        await responder.result(second, "begun done")
        await screen.until("done")
        await screen.until("› ")
        screen.type(CTRL_D)
        assert await screen.end() == 0
        assert "Traceback" not in screen.screen


async def test_an_answer_waits_while_a_line_is_typed_and_the_line_is_asked_next(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat") as screen:
        asked = await ask(screen, responder, "one")
        screen.type("tw")
        await screen.until("› tw")
        await responder.delta(asked, 1, "MORE", finish_reason="stop")
        await responder.result(asked, "begun MORE", num_tokens=2)
        screen.type("o" + ENTER)
        assert "MORE" not in await screen.until("o")
        await screen.until("MORE")
        second = await responder.asked()
        assert second.request.messages[0].text == "two"
        await responder.result(second, "answered")
        await screen.until("answered")
        await screen.until("› ")
        screen.type("/exit" + ENTER)
        assert await screen.end() == 0


async def test_a_stop_that_comes_too_late_says_so(settings: Settings, responder: Responder, tmp_path: Path) -> None:
    with terminal(Cli(settings, tmp_path), "chat") as screen:
        asked = await ask(screen, responder, "one")
        screen.type("/sto")
        await screen.until("› /sto")
        await responder.delta(asked, 1, "MORE", finish_reason="stop")
        await responder.result(asked, "begun MORE", num_tokens=2)
        other = await responder.take_over(asked)  # written behind the result, so that this has been read as well
        assert other
        screen.type("p" + ENTER)
        await screen.until("MORE")
        await screen.until("too late to stop it: it had ended already")
        await screen.until("› ")
        screen.type("/stop" + ENTER)
        await screen.until("there is no answer to stop")
        await screen.until("› ")
        screen.type(CTRL_D)
        assert await screen.end() == 0


async def test_ctrl_d_during_an_answer_stops_it_and_leaves(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat") as screen:
        asked = await ask(screen, responder, "one")
        screen.type(CTRL_D)
        await cancelled(responder, asked)
        assert await screen.end() == 0
        assert "stopped after 1 tokens" in screen.screen


async def test_where_nobody_answers_the_second_ctrl_c_does_not_wait(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat") as screen:
        asked = await ask(screen, responder, "one")
        screen.type(CTRL_C)
        await responder.cancelled()
        screen.type(CTRL_C)
        await screen.until("it was asked to stop and has not ended yet")
        assert asked.request_id in await screen.until("shows its answer")
        await screen.until("› ")
        screen.type(CTRL_D)
        assert await screen.end() == 0


@pytest.mark.parametrize("typed", ["", "in the middle"], ids=["of an answer", "of a line"])
async def test_a_terminal_echoes_again_after_the_chat_was_ended_in_the_middle(
    settings: Settings, responder: Responder, tmp_path: Path, typed: str
) -> None:
    with terminal(Cli(settings, tmp_path), "chat") as screen:
        await ask(screen, responder, "one")
        if typed:
            screen.type(typed)
            await screen.until(typed)
        assert not screen.echoes()
        screen.process.send_signal(signal.SIGTERM)
        assert await screen.end() == 143
        assert screen.echoes()
        assert "Traceback" not in screen.screen


async def test_a_sign_of_life_says_what_is_missing_and_goes_with_the_first_token(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat", "hi") as screen:
        asked = await responder.asked()
        await screen.until("no token yet, 1 s")
        await screen.until("no gate and no pipeline and no worker is running")
        await responder.delta(asked, 0, "there", finish_reason="stop")
        await responder.result(asked, "there")
        await screen.until("there")
        assert await screen.end() == 0
        assert "no token yet" not in screen.screen
