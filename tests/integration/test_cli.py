"""The command line as real processes on the real broker, with gate and worker played record by record."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.groups import role_groups
from headrace.pending import pending_work
from runtime.kafka import make_consumer, make_producer
from runtime.topics import create_missing, partition_counts
from schemas.errors import ErrorBody
from schemas.names import Names
from schemas.settings import Settings
from schemas.structured import JsonSchemaFormat, NamedSchema
from schemas.topics import registry
from tests.integration.responder import MODEL, Responder
from tests.tied import tied

pytestmark = pytest.mark.integration

HEADRACE = Path(sys.executable).with_name("headrace")


class Cli:
    """Starts `headrace` with the test's broker and name space, and nothing of this machine."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            **{name: str(folder) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")},
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": str(settings.kafka.bootstrap_servers),
            "HEADRACE_STORAGE__ENDPOINT": str(settings.storage.endpoint),
            "HEADRACE_TOPICS__NAMESPACE": settings.topics.namespace,
            "HEADRACE_TOPICS__PARTITIONS": str(settings.topics.partitions),
        }

    @asynccontextmanager
    async def start(self, *words: str) -> AsyncIterator[Process]:
        """A running command."""
        process = await asyncio.create_subprocess_exec(
            *tied(HEADRACE, *words), stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self.env, cwd=self.folder
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def run(self, *words: str) -> tuple[int, str, str]:
        """A command to its end: exit code, stdout, stderr."""
        async with self.start(*words) as process:
            return await end(process)


async def end(process: Process, text: bytes | None = None) -> tuple[int, str, str]:
    out, err = await process.communicate(text)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def read(process: Process, size: int) -> str:
    assert process.stdout is not None
    return (await process.stdout.readexactly(size)).decode()


@pytest.fixture
def cli(settings: Settings, tmp_path: Path) -> Cli:
    return Cli(settings, tmp_path)


async def test_chat_shows_the_answer_while_it_is_made(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--session", "s", "--max-tokens", "9", "--system", "Be kind.") as process:
        asked = await responder.asked()
        assert [(message.role, message.text) for message in asked.request.messages] == [
            ("system", "Be kind."),
            ("user", "hi"),
        ]
        assert (asked.request.session, asked.request.max_tokens, asked.request.model) == ("s", 9, MODEL)
        await responder.delta(asked, 0, "good ")
        assert await read(process, 5) == "good "
        await responder.delta(asked, 1, "day", finish_reason="stop")
        await responder.result(asked, "good day", num_tokens=2)
        code, out, err = await end(process)
    assert (code, out) == (0, "day\n")
    assert "first token after" in err
    assert "2 tokens" in err
    assert "\x1b" not in out + err


async def test_chat_without_stream_shows_the_answer_at_once(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--no-stream") as process:
        asked = await responder.asked()
        await responder.delta(asked, 0, "good ")
        await responder.delta(asked, 1, "day", finish_reason="stop")
        await responder.result(asked, "good day", num_tokens=2)
        assert (await end(process))[:2] == (0, "good day\n")


async def test_chat_asks_for_an_answer_of_the_form_that_a_file_has(cli: Cli, responder: Responder) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"const": "é"}}}
    (cli.folder / "my.form.json").write_text(json.dumps(schema))
    async with cli.start("chat", "hi", "--json-schema", "my.form.json") as process:
        asked = await responder.asked()
        assert asked.request.response_format == JsonSchemaFormat(NamedSchema(name="my.form", schema=schema))
        await responder.result(asked, '{"a": "é"}')
        assert (await end(process))[:2] == (0, '{"a": "é"}\n')


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("{", "no JSON"), ("[]", "no JSON Schema")])
async def test_a_file_without_a_schema_is_wrong_usage(cli: Cli, content: str | None, said: str) -> None:
    if content is not None:
        (cli.folder / "form.json").write_text(content)
    code, out, err = await cli.run("chat", "hi", "--json-schema", "form.json")
    assert (code, out) == (2, "")
    assert said in " ".join(err.replace("│", " ").split())


async def test_chat_takes_a_piped_text(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat") as process:
        ending = asyncio.create_task(end(process, "из файла\n".encode()))
        asked = await responder.asked()
        assert asked.request.messages[0].text == "из файла\n"
        await responder.result(asked, "да 🙂")
        assert (await ending)[:2] == (0, "да 🙂\n")


@pytest.mark.parametrize(("words", "num_deltas"), [([], 2), (["--no-stream"], 0)])
async def test_chat_as_json_is_lines_of_deltas_and_then_the_result(
    cli: Cli, responder: Responder, words: list[str], num_deltas: int
) -> None:
    async with cli.start("chat", "hi", "--json", *words) as process:
        asked = await responder.asked()
        await responder.delta(asked, 0, "a")
        await responder.delta(asked, 1, "b", finish_reason="stop")
        await responder.result(asked, "ab", num_tokens=2)
        code, out, err = await end(process)
    *deltas, result = [json.loads(line) for line in out.splitlines()]
    assert (code, err, len(deltas)) == (0, "", num_deltas)
    assert (result["schema"], result["status"], result["request_id"]) == ("result/1", "completed", asked.request_id)
    assert "".join(delta["text"] for delta in deltas) == "ab"[:num_deltas]


@pytest.mark.parametrize("words", [[], ["--json"]])
async def test_a_failed_request_ends_with_1_and_its_error(cli: Cli, responder: Responder, words: list[str]) -> None:
    async with cli.start("chat", "hi", *words) as process:
        asked = await responder.asked()
        await responder.delta(asked, 0, "partial")
        error = ErrorBody(message="no such model; there is: m", type="invalid_request_error", code="model_not_found")
        await responder.result(asked, status="failed", error=error)
        code, out, err = await end(process)
    assert code == 1
    assert err == "error: no such model; there is: m\n"
    if words:
        assert json.loads(out.splitlines()[-1])["error"]["code"] == "model_not_found"
    else:
        assert out == "partial\n"


async def test_a_signal_during_an_answer_ends_quietly(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi") as process:
        asked = await responder.asked()
        await responder.delta(asked, 0, "begun")
        await read(process, 5)
        process.send_signal(signal.SIGTERM)
        assert await end(process) == (-signal.SIGTERM, "", "")


async def test_ctrl_c_before_an_answer_shows_nothing_and_says_what_becomes_of_it(
    cli: Cli, responder: Responder
) -> None:
    async with cli.start("chat", "hi", "--keep") as process:
        asked = await responder.asked()
        process.send_signal(signal.SIGINT)
        assert await end(process) == (130, "", f"it runs on: `headrace tail {asked.request_id}` shows its answer\n")


async def test_chat_says_who_is_missing_when_nobody_answers(cli: Cli, responder: Responder) -> None:
    code, out, err = await cli.run("chat", "hi", "--timeout", "0.3")
    assert (code, out) == (1, "")
    assert "no gate and no pipeline and no worker is running" in err
    assert "headrace tail" in err


async def test_chat_without_topics_says_how_to_make_them(cli: Cli) -> None:
    code, _, err = await cli.run("chat", "hi")
    assert code == 2
    assert "create them with `headrace topics create`" in err


async def test_tail_reads_a_finished_stream_from_an_index(cli: Cli, responder: Responder) -> None:
    async with cli.start("chat", "hi", "--session", "s", "--json") as process:
        asked = await responder.asked()
        await responder.delta(asked, 0, "ab", num_tokens=2)
        await responder.delta(asked, 2, "c", finish_reason="stop")
        await responder.result(asked, "abc", num_tokens=3)
        await end(process)
    later = ["tail", asked.request_id, "--session", "s", "--from-index", "2", "--since", "10m"]
    assert (await cli.run(*later))[:2] == (0, "c\n")
    code, out, _ = await cli.run("tail", asked.request_id, "--session", "s", "--json")
    assert (code, [json.loads(line).get("status") for line in out.splitlines()]) == (0, [None, None, "completed"])


async def test_tail_of_an_unknown_id_ends_with_1(cli: Cli, responder: Responder) -> None:
    code, out, err = await cli.run("tail", "nobody", "--timeout", "0.3")
    assert (code, out) == (1, "")
    assert err.startswith("error: nothing was heard of request nobody")


async def test_topics_are_created_once_and_listed(cli: Cli, settings: Settings) -> None:
    prefix = settings.topics.namespace
    code, out, _ = await cli.run("topics", "list", "--json")
    assert (code, {topic["exists"] for topic in json.loads(out)}) == (1, {False})
    code, out, _ = await cli.run("topics", "create")
    assert code == 0
    assert f"created {prefix}.requests\n" in out
    assert await cli.run("topics", "create") == (0, "all topics exist\n", "")
    code, out, _ = await cli.run("topics", "create", "--json")
    assert (code, json.loads(out)) == (0, {"created": []})
    code, out, _ = await cli.run("topics", "list", "--json")
    topics = {topic["name"]: topic for topic in json.loads(out)}
    assert code == 0
    assert topics[f"{prefix}.requests"]["configs"]["message.timestamp.type"] == "LogAppendTime"
    assert topics[f"{prefix}.requests"]["pending"] == 0
    assert topics[f"{prefix}.tokens"]["pending"] is None
    assert not any(topic["deviations"] for topic in topics.values())
    assert f"{prefix}.requests" in (await cli.run("topics", "list"))[1]


async def test_what_differs_from_the_registry_is_said(cli: Cli, responder: Responder) -> None:
    code, out, _ = await cli.run("topics", "list", "--set", "topics.retention_hours=1", "--set", "topics.partitions=5")
    assert code == 0
    assert f"{responder.names.requests()}: retention.ms should be 3600000, partitions should be 5" in out


@pytest.fixture
async def topics(settings: Settings) -> Names:
    names = Names(settings.topics.namespace)
    await create_missing(settings.kafka, registry(names, settings.topics, settings.models))
    return names


async def pending_requests(settings: Settings, names: Names) -> int:
    counts = await partition_counts(settings.kafka, [names.requests()])
    work = await pending_work(settings.kafka, role_groups(names, settings.models), counts)
    return next(item.num_records for item in work if item.topic == names.requests())


async def test_pending_are_records_and_not_the_markers_of_transactions(settings: Settings, topics: Names) -> None:
    producer = make_producer(settings.kafka, transactional_id=f"{topics.prefix}.writer")
    consumer = make_consumer(settings.kafka, topics.requests(), group=topics.gate_group)
    await producer.start()
    try:
        for number in range(3):
            async with producer.transaction():
                await producer.send_and_wait(topics.requests(), b"x", partition=number % 2)
        assert await pending_requests(settings, topics) == 3
        await producer.begin_transaction()
        await producer.send_and_wait(topics.requests(), b"aborted", partition=2)
        await producer.abort_transaction()
        assert await pending_requests(settings, topics) == 3

        await consumer.start()
        seen = [await consumer.getone() for _ in range(3)]
        one = seen[0]
        await consumer.commit({tp: 1 for tp in consumer.assignment() if tp.partition == one.partition})
        assert await pending_requests(settings, topics) < 3
        # The offsets behind the last records: their markers lie between there and the ends.
        behind = {record.partition: record.offset + 1 for record in sorted(seen, key=lambda record: record.offset)}
        await consumer.commit({tp: behind[tp.partition] for tp in consumer.assignment() if tp.partition in behind})
        assert await pending_requests(settings, topics) == 0
    finally:
        await consumer.stop()
        await producer.stop()
