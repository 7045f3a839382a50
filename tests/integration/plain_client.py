"""A client of another family than ours (librdkafka), with nothing of headrace in it: it sees what a stranger sees."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

ANSWER_WITHIN_S = 60.0


class Answer(NamedTuple):
    """What was read of one request: its deltas in the order of the log, its result, and the headers of both."""

    deltas: list[dict[str, Any]]
    result: dict[str, Any]
    headers: list[dict[str, bytes]]

    @property
    def text(self) -> str:
        """The deltas joined."""
        return "".join(delta["choices"][0].get("delta", {}).get("content", "") for delta in self.deltas)


class _Record(NamedTuple):
    topic: str
    value: dict[str, Any]
    headers: dict[str, Any]


class PlainClient:
    """Produces to `requests` and reads all of `tokens`, `results` and `dead-letters` from the beginning."""

    def __init__(self, bootstrap_servers: str, namespace: str) -> None:
        self.namespace = namespace
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._producers: dict[str, Producer] = {}
        self._consumer = Consumer(
            {**self._common, "group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
        )
        topics = [f"{namespace}.{name}" for name in ("tokens", "results", "dead-letters")]
        metadata = self._consumer.list_topics(timeout=10)
        self._consumer.assign(
            [TopicPartition(topic, number, 0) for topic in topics for number in metadata.topics[topic].partitions]
        )
        self._records: list[_Record] = []

    def close(self) -> None:
        """Leave."""
        self._consumer.close()

    def produce(
        self,
        value: bytes | None,
        *,
        key: str | bytes | None,
        headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] = (),
        lane: str = "",
        topic: str = "requests",
        partition: int = -1,
        compression: str = "none",
    ) -> str:
        """Write one record and give its place, as in "topic-partition-offset". Partition -1 is that of the key."""
        written: list[Message] = []
        producer = self._producer_of(compression)
        producer.produce(
            f"{self.namespace}.{topic}{lane}",
            value,
            key=key,
            partition=partition,
            headers=list(headers.items() if isinstance(headers, Mapping) else headers),
            on_delivery=lambda _, message: written.append(message),
        )
        producer.flush(10)
        return f"{written[0].topic()}-{written[0].partition()}-{written[0].offset()}"

    def transact(self, records: Sequence[tuple[str, bytes]], *, commit: bool) -> None:
        """Write requests (key, value) in one transaction, and commit or abort it."""
        producer = Producer({**self._common, "partitioner": "murmur2_random", "transactional.id": self.namespace})
        producer.init_transactions(30)
        producer.begin_transaction()
        for key, value in records:
            producer.produce(f"{self.namespace}.requests", value, key=key)
        producer.flush(10)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def _producer_of(self, compression: str) -> Producer:
        if compression not in self._producers:
            # Kafka's own partitioner: librdkafka's default is another one.
            options = {"partitioner": "murmur2_random", "enable.idempotence": True, "compression.type": compression}
            self._producers[compression] = Producer({**self._common, **options})
        return self._producers[compression]

    def ask(self, request_id: str, **body: Any) -> Answer:
        """Ask under an id, and read the whole answer."""
        self.produce(json.dumps({"id": request_id, **body}).encode(), key=body.get("session", request_id))
        return self.answer(request_id)

    def answer(self, request_id: str) -> Answer:
        """Read until the result of a request is there, and all that stands before it on `tokens`."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while not self._is_read(request_id):
            self._poll(deadline, f"no result of {request_id}")
        deltas = [item for item in self._of(request_id, "tokens") if item[0]["schema"] == "delta/1"]
        [result] = self._terminal(request_id)
        return Answer([value for value, _ in deltas], result[0], [headers for _, headers in [*deltas, result]])

    def first_delta(self, request_id: str) -> dict[str, Any]:
        """Read until something of a request has been streamed."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while True:
            found = [value for value, _ in self._of(request_id, "tokens") if value["schema"] == "delta/1"]
            if found:
                return found[0]
            self._poll(deadline, f"no delta of {request_id}")

    def last_deltas(self, request_id: str) -> dict[str, Any]:
        """Read until the last delta of a request's only choice is there; its result may not be yet."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while True:
            for value, _ in self._of(request_id, "tokens"):
                if value["schema"] == "delta/1" and value["choices"][0]["finish_reason"]:
                    return value
            self._poll(deadline, f"no last delta of {request_id}")

    def dead_letter(self, request_id: str) -> dict[str, Any]:
        """Read until the bundle of a request is there."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while not self._of(request_id, "dead-letters"):
            self._poll(deadline, f"no dead letter of {request_id}")
        [letter] = self._of(request_id, "dead-letters")
        return letter[0]

    def results(self, request_id: str) -> int:
        """How many terminal records of a request were read so far."""
        return len(self._terminal(request_id))

    def repeats(self, request_id: str) -> list[dict[str, Any]]:
        """Read until there is a record that a request was sent again; all of them so far."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while not (found := [v for v, _ in self._of(request_id, "results") if v["schema"] == "duplicate/1"]):
            self._poll(deadline, f"no word of the repeat of {request_id}")
        return found

    def _is_read(self, request_id: str) -> bool:
        """Topics are read independently: a result may come before the deltas, and the worker's mark behind these."""
        terminal = self._terminal(request_id)
        is_of_gate = bool(terminal) and "epoch" not in terminal[0][0]
        marks = {value["schema"] for value, _ in self._of(request_id, "tokens")}
        return bool(terminal) and (is_of_gate or "ended/1" in marks)

    def _terminal(self, request_id: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
        return [item for item in self._of(request_id, "results") if item[0]["schema"] == "result/1"]

    def _poll(self, deadline: float, what: str) -> None:
        message = self._consumer.poll(0.5)
        if message is not None and message.error() is None:
            topic, headers = str(message.topic()), dict(message.headers() or [])
            self._records.append(_Record(topic, _object(message.value()), headers))
        elif time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {ANSWER_WITHIN_S:g} s")

    def _of(self, request_id: str, topic: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
        name = f"{self.namespace}.{topic}"
        return [
            (record.value, record.headers)
            for record in self._records
            if record.topic == name and record.value.get("request_id") == request_id
        ]


def _object(value: bytes | None) -> dict[str, Any]:
    """The JSON object of a record; an empty one for what is none."""
    try:
        decoded = json.loads(value or b"")
    except ValueError:
        return {}
    return decoded if isinstance(decoded, dict) else {}
