"""A client's connections to the broker: opened together, closed together."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from headrace.client.cancel import OutgoingCancel
from headrace.client.claims import ClientClaims
from headrace.client.delta import Delta
from headrace.client.diagnosis import explain, missing_roles
from headrace.client.epochs import EpochBook
from headrace.client.inbox import Inbox
from headrace.client.messages import OutgoingRequest
from headrace.client.reader import FETCH_MAX_WAIT_MS, LogReader
from headrace.client.scout import Scout
from headrace.client.stream import Outcome
from runtime.broker import broker_errors
from runtime.kafka import make_admin, make_consumer, make_producer, partition_for, running
from runtime.topics import count_partitions
from runtime.tracing import HEADER as TRACEPARENT
from runtime.tracing import traceparent_of
from schemas.errors import NoAnswer, RequestFailed, SettingsError
from schemas.names import Names
from schemas.settings import Settings


class Link:
    """Producer and look-ups of one client, and the reader that its streams share. Made by `connected`."""

    reader: LogReader

    def __init__(self, settings: Settings, names: Names, producer: Any, scout: Scout, epochs: EpochBook) -> None:
        self._settings = settings
        self.claims = ClientClaims(settings.storage, names)
        self._producer = producer
        self.epochs = epochs
        self.names = names
        self.scout = scout

    @asynccontextmanager
    async def open_reader(self) -> AsyncIterator[LogReader]:
        """A reader that shares the look-ups of this link."""
        kafka = self._settings.kafka
        async with AsyncExitStack() as opened:
            with broker_errors(kafka):
                consumer = await opened.enter_async_context(
                    running(make_consumer(kafka, fetch_max_wait_ms=FETCH_MAX_WAIT_MS))
                )
            reader = LogReader(consumer, self.names, self.scout, self.epochs, self.claims)
            yield await opened.enter_async_context(reader)

    async def send(self, request: OutgoingRequest, partition: int) -> None:
        """Write a request; it is durable when this returns. One that is too large for a record leaves a claim in it.

        Raises:
            RequestTooLarge: it is too large for an object as well.
            SettingsError, StorageUnavailable: it needs object storage, and there is none.
        """
        request = await self.claims.fitting(request)
        with broker_errors(self._settings.kafka):
            await self._producer.send_and_wait(
                self.names.requests(request.lane),
                request.value,
                key=request.key,
                partition=partition,
                headers=[(TRACEPARENT, traceparent_of([]).encode())],
            )

    async def send_cancel(self, cancel: OutgoingCancel) -> None:
        """Write a cancel; it is durable when this returns."""
        with broker_errors(self._settings.kafka):
            await self._producer.send_and_wait(
                self.names.control,
                cancel.value,
                key=cancel.key,
                partition=partition_for(cancel.key, self.scout.num_partitions),
                headers=[(TRACEPARENT, traceparent_of([]).encode())],
            )

    async def next_delta(self, inbox: Inbox, outcome: Outcome, timeout_s: float) -> Delta | None:
        """The next delta of a stream; None behind the last one, with the result in `outcome`.

        Raises:
            RequestFailed: the request failed or expired.
            NoAnswer: nothing came for `timeout_s`.
        """
        try:
            item = await inbox.next(timeout_s)
        except TimeoutError:
            raise await self._no_answer(inbox, timeout_s) from None
        if isinstance(item, Delta):
            return item
        outcome.result = item
        # Who cancels a request wants its stream to end: that is no error of the stream.
        if item.status not in ("completed", "cancelled"):
            raise RequestFailed(item)
        return None

    async def _no_answer(self, inbox: Inbox, timeout_s: float) -> NoAnswer:
        missing = await missing_roles(self._settings.kafka, self.names, self._settings.worker.model)
        return NoAnswer(
            f"nothing was heard of request {inbox.request_id} for {timeout_s:g} s; {explain(missing)}. It is not lost: "
            f"read it later with `headrace tail {inbox.request_id}`"
        )


@asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Link]:
    """Connect a client.

    Raises:
        BrokerUnavailable: there is no broker.
        SettingsError: the topics are not there, or the broker refuses us.
    """
    kafka, names = settings.kafka, Names(settings.topics.namespace, settings.topics.generation)
    async with AsyncExitStack() as opened:
        with broker_errors(kafka):
            admin = await opened.enter_async_context(running(make_admin(kafka)))
            num_partitions = await _num_partitions(admin, names)
            consumer = await opened.enter_async_context(running(make_consumer(kafka)))
            producer = await opened.enter_async_context(running(make_producer(kafka)))
        scout = Scout(consumer, kafka, names, num_partitions)
        epochs = EpochBook(admin, kafka, names, settings.models, scout)
        link = Link(settings, names, producer, scout, epochs)
        opened.callback(link.claims.close)
        link.reader = await opened.enter_async_context(link.open_reader())
        yield link


async def _num_partitions(admin: Any, names: Names) -> int:
    """How many partitions the topics of a request have: what the broker says, whatever is configured here."""
    wanted = (names.requests(), names.tokens, names.results)
    counts = await count_partitions(admin, wanted)
    missing = [name for name in wanted if name not in counts]
    if missing:
        raise SettingsError(f"topics are missing: {', '.join(missing)}; create them with `headrace topics create`")
    if len(set(counts.values())) > 1:
        raise SettingsError(f"topics of one request must have the same number of partitions, they have {counts}")
    return counts[names.tokens]
