"""A client of another family than ours (librdkafka), with nothing of headrace in it: it sees what a stranger sees."""

import json
import time
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


class PlainClient:
    """Produces to `requests` and reads all of `tokens`, `results` and `dead-letters` from the beginning."""

    def __init__(self, bootstrap_servers: str, namespace: str) -> None:
        self.namespace = namespace
        common = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        # Kafka's own partitioner: librdkafka's default is another one.
        self._producer = Producer({**common, "partitioner": "murmur2_random", "enable.idempotence": True})
        self._consumer = Consumer(
            {**common, "group.id": "unused", "isolation.level": "read_committed", "enable.auto.commit": False}
        )
        topics = [f"{namespace}.{name}" for name in ("tokens", "results", "dead-letters")]
        metadata = self._consumer.list_topics(timeout=10)
        self._consumer.assign(
            [TopicPartition(topic, number, 0) for topic in topics for number in metadata.topics[topic].partitions]
        )
        self._records: list[Message] = []

    def close(self) -> None:
        """Leave."""
        self._consumer.close()

    def produce(
        self, value: bytes | None, *, key: str | bytes | None, headers: dict[str, bytes] | None = None, lane: str = ""
    ) -> str:
        """Write one record and give its place, as in "topic-partition-offset"."""
        written: list[Message] = []
        self._producer.produce(
            f"{self.namespace}.requests{lane}",
            value,
            key=key,
            headers=list((headers or {}).items()),
            on_delivery=lambda _, message: written.append(message),
        )
        self._producer.flush(10)
        return f"{written[0].topic()}-{written[0].partition()}-{written[0].offset()}"

    def ask(self, request_id: str, **body: Any) -> Answer:
        """Ask under an id, and read the whole answer."""
        self.produce(json.dumps({"id": request_id, **body}).encode(), key=body.get("session", request_id))
        return self.answer(request_id)

    def answer(self, request_id: str) -> Answer:
        """Read until the result of a request is there."""
        deadline = time.monotonic() + ANSWER_WITHIN_S
        while not self._of(request_id, "results"):
            self._poll(deadline, f"no result of {request_id}")
        deltas = [item for item in self._of(request_id, "tokens") if item[0]["schema"] == "delta/1"]
        [result] = self._of(request_id, "results")
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
        return len(self._of(request_id, "results"))

    def _poll(self, deadline: float, what: str) -> None:
        message = self._consumer.poll(0.5)
        if message is not None and message.error() is None:
            self._records.append(message)
        elif time.monotonic() > deadline:
            raise TimeoutError(f"{what} within {ANSWER_WITHIN_S:g} s")

    def _of(self, request_id: str, topic: str) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
        found = []
        for message in self._records:
            if message.topic() == f"{self.namespace}.{topic}":
                value = json.loads(message.value())
                if value.get("request_id") == request_id:
                    found.append((value, dict(message.headers() or [])))
        return found
