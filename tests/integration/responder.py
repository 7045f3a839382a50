"""Plays gate and worker for tests of readers: what the test says is written to the real broker, record by record."""

from types import TracebackType
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata

from consumers.worker.takeover import Checkpoint, encode_checkpoint
from runtime.headers import record_headers
from runtime.kafka import close, make_consumer, make_producer, running
from runtime.topics import create_missing
from schemas.codec import CONTROL, JOURNAL, RESULT, decode_request
from schemas.control import Cancel
from schemas.envelope import Envelope, Status
from schemas.errors import ErrorBody
from schemas.names import Names
from schemas.requests import ChatRequest, Message
from schemas.results import DuplicateOf, Result, ResultChoice
from schemas.sampling import FinishReason
from schemas.settings import Settings
from schemas.tokens import ChunkChoice, ChunkMessage, JournalRecord, Takeover, TokenDelta, Usage
from schemas.topics import registry

MODEL = "smollm2-135m-instruct"


class Asked(NamedTuple):
    """A request as it arrived."""

    request_id: str
    key: bytes
    partition: int
    request: ChatRequest
    topic: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()


class Responder:
    """Reads requests, and writes deltas, marks and results where the real roles would."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = Names(settings.topics.namespace, settings.topics.generation)
        self._producer: AIOKafkaProducer = make_producer(settings.kafka)
        self._requests: AIOKafkaConsumer = make_consumer(
            settings.kafka, self.names.requests(), self.names.requests("bulk")
        )

        self._cancels: AIOKafkaConsumer = make_consumer(settings.kafka, self.names.control)

    async def __aenter__(self) -> "Responder":
        await create_missing(
            self.settings.kafka, registry(self.names, self.settings.topics, list(self.settings.models))
        )
        await self._producer.start()
        await self._requests.start()
        await self._cancels.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close(self._requests)
        await close(self._cancels)
        await close(self._producer)

    async def asked(self) -> Asked:
        """The next request that arrives."""
        record = await self._requests.getone()
        request = decode_request(record.value).request
        assert isinstance(request, ChatRequest)
        assert request.id is not None
        return Asked(request.id, record.key, record.partition, request, record.topic, record.headers)

    async def cancelled(self) -> tuple["ConsumerRecord[bytes, bytes]", Cancel]:
        """The next cancel that arrives, with the record that it stands in."""
        record = await self._cancels.getone()
        return record, CONTROL.decode(record.value)

    def source(self, asked: Asked) -> str:
        """The input partition that the real worker would have had it from."""
        return f"{self.names.batches(MODEL)}-{asked.partition}"

    async def take_over(self, asked: Asked, *, previous_epoch: int | None = None) -> int:
        """Write a takeover mark; returns its epoch."""
        mark = Takeover(source=self.source(asked), worker="w", committed_offset=0, previous_epoch=previous_epoch)
        return await self._write(self.names.tokens, asked.partition, None, JOURNAL.encode(mark))

    async def commit_epoch(self, asked: Asked, epoch: int) -> None:
        """Commit as the worker's group does, with its epoch beside the offset."""
        tp = TopicPartition(self.names.batches(MODEL), asked.partition)
        metadata = encode_checkpoint(Checkpoint(epoch=epoch, tokens_low=0))
        consumer = make_consumer(self.settings.kafka, group=self.names.worker_group(MODEL))
        async with running(consumer):
            consumer.assign([tp])
            await consumer.commit({tp: OffsetAndMetadata(0, metadata)})

    async def delta(
        self,
        asked: Asked,
        index: int,
        text: str,
        *,
        num_tokens: int = 1,
        epoch: int = 0,
        choice: int = 0,
        finish_reason: FinishReason | None = None,
    ) -> int:
        """Write one delta; its token ids are 100 + their index."""
        record = TokenDelta(
            id=f"chatcmpl-{asked.request_id}",
            object="chat.completion.chunk",
            created=0,
            model=MODEL,
            choices=[ChunkChoice(index=choice, delta=ChunkMessage(content=text), finish_reason=finish_reason)],
            request_id=asked.request_id,
            tenant=asked.request.tenant,
            index=index,
            epoch=epoch,
            source=self.source(asked),
            choice=choice,
            token_ids=[100 + index + step for step in range(num_tokens)],
        )
        return await self.journal(asked, record)

    async def journal(self, asked: Asked, record: JournalRecord) -> int:
        """Write any record of `tokens`."""
        return await self._write(self.names.tokens, asked.partition, asked.key, JOURNAL.encode(record), asked)

    async def raw_token(self, asked: Asked, value: bytes | None) -> None:
        """Write any bytes to `tokens`."""
        await self._write(self.names.tokens, asked.partition, asked.key, value)

    async def result(
        self,
        asked: Asked,
        *texts: str,
        num_tokens: int = 1,
        status: Status = "completed",
        error: ErrorBody | None = None,
        tenant: str | None = None,
    ) -> int:
        """Write the terminal record, with one choice a text; its offset is returned."""
        choices = [
            ResultChoice(
                index=index,
                finish_reason="stop",
                token_ids=[100 + step for step in range(num_tokens)],
                message=Message(role="assistant", content=text),
            )
            for index, text in enumerate(texts)
        ]
        record = Result(
            id=f"chatcmpl-{asked.request_id}",
            object="chat.completion",
            created=0,
            model=MODEL,
            request_id=asked.request_id,
            status=status,
            choices=choices,
            error=error,
            tenant=tenant or asked.request.tenant,
            session=asked.request.session,
            usage=Usage(completion_tokens=num_tokens * len(texts)),
        )
        return await self._write(self.names.results, asked.partition, asked.key, RESULT.encode(record))

    async def end(self, asked: Asked, record: Result) -> int:
        """Write any terminal record; its offset is returned."""
        return await self._write(self.names.results, asked.partition, asked.key, RESULT.encode(record))

    async def duplicate(self, asked: Asked, result_offset: int | None, *, has_ended: bool = False) -> None:
        """Write that a request was sent again."""
        record = DuplicateOf(
            request_id=asked.request_id,
            tenant=asked.request.tenant,
            result_offset=result_offset,
            has_ended=has_ended,
        )
        await self._write(self.names.results, asked.partition, asked.key, RESULT.encode(record))

    async def _write(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, asked: Asked | None = None
    ) -> int:
        headers = [] if asked is None else record_headers("delta", _envelope(asked), source="responder")
        written = await self._producer.send_and_wait(topic, value, key=key, partition=partition, headers=headers)
        return int(written.offset)


def _envelope(asked: Asked) -> Envelope:
    return Envelope(
        request_id=asked.request_id, key=asked.key.decode(), accepted_at_ms=0, deadline_ms=1, traceparent="00-0-0-00"
    )
