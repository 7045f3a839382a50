"""A worker whose answers are written by a script, with all that a reader of `tokens` may meet on the way.

It is a plain confluent-kafka program on the real broker: late deltas of replaced workers, repeats, other requests,
transactions that are aborted, kinds of record that do not exist yet. The text of the user's message picks the script.
"""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer

from schemas.codec import JOURNAL, RESULT, decode_request
from schemas.errors import UnknownModel
from schemas.names import Names
from schemas.requests import ChatRequest, Message
from schemas.results import Result, ResultChoice, ResultRecord
from schemas.settings import DEFAULT_MODEL
from schemas.tokens import Admitted, ChunkChoice, ChunkMessage, Ended, JournalRecord, Takeover, TokenDelta, Usage

ANSWER = "Hello, wörld 🌊!"
WRONG = "WRONG"

# What the user's message may ask for.
SAY_ALL = "say all of it"
SAY_HALF = "say half of it, then end"
REFUSE = "be refused"


class Heard(NamedTuple):
    """A request as it stood on the broker."""

    key: bytes
    partition: int
    value: bytes


class ScriptedWorker:
    """Answers every request on `requests` until the block ends. `heard` holds what came in."""

    def __init__(self, bootstrap_servers: str, names: Names) -> None:
        self._names = names
        self._connection = {"bootstrap.servers": bootstrap_servers}
        self._plain = Producer({**self._connection, "enable.idempotence": True})
        self._transactional = Producer({**self._connection, "transactional.id": f"{names.prefix}.scripted"})
        self._stopping = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-worker")
        self._failure: BaseException | None = None
        self.heard: list[Heard] = []

    def __enter__(self) -> "ScriptedWorker":
        self._transactional.init_transactions(30)
        self._thread.start()
        if not self._listening.wait(30):
            raise TimeoutError("the scripted worker got no partitions")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._plain.close()
        self._transactional.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        consumer = Consumer(
            {**self._connection, "group.id": f"{self._names.prefix}.scripted", "auto.offset.reset": "earliest"}
        )
        try:
            consumer.subscribe([self._names.requests()], on_assign=lambda *_: self._listening.set())
            while not self._stopping.is_set():
                message = consumer.poll(0.05)
                if message is not None and message.error() is None:
                    self._answer(Heard(message.key() or b"", message.partition() or 0, message.value() or b""))
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's own thread
            self._failure = failure
        finally:
            consumer.close()

    def _answer(self, heard: Heard) -> None:
        self.heard.append(heard)
        request = decode_request(heard.value).request
        if not isinstance(request, ChatRequest) or request.id is None:
            raise TypeError(f"the examples send chats with an id, not {request}")
        script: Callable[[Answer], None] = {SAY_ALL: say_all, SAY_HALF: say_half, REFUSE: refuse}[
            request.messages[0].text
        ]
        script(Answer(self, heard, request.id))

    def write(self, topic: str, heard: Heard, value: bytes) -> int:
        """Write one plain record, wait until it is there, and give its offset."""
        offsets: list[int] = []
        self._plain.produce(topic, value, heard.key, heard.partition, on_delivery=_collect(offsets))
        self._plain.flush()
        return offsets[0]

    def transact(self, records: list[tuple[str, bytes]], heard: Heard, *, commit: bool = True) -> list[int]:
        """Write records in one transaction, commit or abort it, and give their offsets."""
        offsets: list[int] = []
        self._transactional.begin_transaction()
        for topic, value in records:
            self._transactional.produce(topic, value, heard.key, heard.partition, on_delivery=_collect(offsets))
        self._transactional.flush()
        (self._transactional.commit_transaction if commit else self._transactional.abort_transaction)()
        return offsets


class Answer:
    """One answer being written: the verbs of the scripts below."""

    def __init__(self, worker: ScriptedWorker, heard: Heard, request_id: str) -> None:
        self._worker, self._heard, self._request_id = worker, heard, request_id
        self._names = worker._names
        self._source = f"{self._names.batches(DEFAULT_MODEL)}-{heard.partition}"

    def take_over(self) -> int:
        """A new owner of the source; gives its epoch."""
        mark = Takeover(source=self._source, worker="scripted", committed_offset=0)
        return self._worker.transact([(self._names.tokens, JOURNAL.encode(mark))], self._heard)[0]

    def abort(self, *records: JournalRecord | ResultRecord) -> None:
        """Records that are never committed."""
        self._worker.transact([self._encoded(record) for record in records], self._heard, commit=False)

    def delta(self, epoch: int, index: int, token_ids: list[int], text: str, **fields: Any) -> None:
        """One delta. Fields of the delta may be given; `finish_reason` is one of its choice."""
        finish_reason = fields.pop("finish_reason", None)
        record = TokenDelta(
            **{
                "id": f"chatcmpl-{self._request_id}",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": DEFAULT_MODEL,
                "choices": [ChunkChoice(index=0, delta=ChunkMessage(content=text), finish_reason=finish_reason)],
                "request_id": self._request_id,
                "index": index,
                "epoch": epoch,
                "source": self._source,
                "token_ids": token_ids,
                **fields,
            }
        )
        self._worker.write(self._names.tokens, self._heard, JOURNAL.encode(record))

    def admit(self, epoch: int) -> None:
        """The mark of an attempt."""
        self.raw(JOURNAL.encode(Admitted(request_id=self._request_id, source=self._source, epoch=epoch)))

    def raw(self, value: bytes) -> None:
        """Any record on `tokens`."""
        self._worker.write(self._names.tokens, self._heard, value)

    def result(self, text: str = ANSWER, **fields: Any) -> Result:
        """A terminal record."""
        choice = ResultChoice(index=0, finish_reason="stop", message=Message(role="assistant", content=text))
        return Result(
            **{
                "id": f"chatcmpl-{self._request_id}",
                "object": "chat.completion",
                "created": 0,
                "model": DEFAULT_MODEL,
                "request_id": self._request_id,
                "status": "completed",
                "choices": [choice],
                "usage": Usage(prompt_tokens=3, completion_tokens=5, total_tokens=8),
                **fields,
            }
        )

    def end(self, result: Result, epoch: int) -> None:
        """Result and mark in one transaction, as workers do."""
        mark = Ended(
            request_id=self._request_id, tenant="default", source=self._source, epoch=epoch, status=result.status
        )
        self._worker.transact([self._encoded(result), self._encoded(mark)], self._heard)

    def _encoded(self, record: JournalRecord | ResultRecord) -> tuple[str, bytes]:
        if isinstance(record, ResultRecord):
            return self._names.results, RESULT.encode(record)
        return self._names.tokens, JOURNAL.encode(record)


def say_all(answer: Answer) -> None:
    """A worker is replaced twice: once before the request, once while it answers."""
    first = answer.take_over()
    second = answer.take_over()
    answer.delta(first, 0, [0, 0], WRONG)
    answer.delta(second, 0, [0], WRONG, request_id="another-request")
    answer.delta(second, 0, [0], WRONG, tenant="another-tenant")
    answer.admit(second)
    answer.delta(second, 0, [1], "Hel")
    answer.raw(b'{"schema": "of-tomorrow/7", "request_id": "x"}')
    answer.delta(second, 1, [2, 3], "lo, ")
    answer.abort(
        Takeover(source=answer._source, worker="never", committed_offset=0),
        answer.result(WRONG),
    )
    third = answer.take_over()
    answer.delta(second, 3, [0, 0, 0], WRONG)
    answer.delta(third, 1, [2, 3], "lo, ")
    answer.delta(third, 3, [4, 5], "wörld 🌊")
    answer.end(answer.result(WRONG, tenant="another-tenant"), third)
    answer.delta(third, 5, [], "!", finish_reason="stop", status="completed")
    answer.delta(third, 5, [], "!", finish_reason="stop", status="completed")
    answer.end(answer.result(), third)


def say_half(answer: Answer) -> None:
    """The result is read before the last deltas: here they never come."""
    epoch = answer.take_over()
    answer.delta(epoch, 0, [1, 2], "Hello, ")
    answer.end(answer.result(), epoch)


def refuse(answer: Answer) -> None:
    """A request that was never forwarded has a result only."""
    error = UnknownModel("nobody serves it; served are: none").body
    answer.end(answer.result(status="failed", choices=[], usage=Usage(), error=error), 0)


def _collect(offsets: list[int]) -> Callable[[Any, Any], None]:
    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            raise RuntimeError(f"the scripted worker cannot write: {error}")
        offsets.append(message.offset())

    return on_delivery
