"""Kafka and S3 as docker-compose.yml starts them: the images' own programs, run here with that environment."""

import asyncio
import contextlib
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.local.java import find_java
from headrace.local.kafka_jars import find_jars
from headrace.local.s3 import STRAY_SOCKET, find_weed
from headrace.local.settings import LocalKafkaSettings, ignore_report
from runtime.storage import ObjectStore
from schemas.settings import StorageSettings
from tests.docker.compose import load_compose
from tests.docker.processes import container_environment, replaced, running, wait_until

pytestmark = pytest.mark.integration

SERVICES: dict[str, dict[str, Any]] = load_compose()["services"]
FreePort = Callable[[], int]
START_WITHIN_S = 60
PARTS = ("s3", "master", "volume", "filer", "admin")


def answers(bootstrap_servers: str) -> bool:
    try:
        AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0}).list_topics(timeout=2)
    except KafkaException:
        return False
    return True


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: FreePort) -> Iterator[dict[str, str]]:
    """The service `kafka`; gives the addresses of its listeners.

    The image's own entry point turns the environment into a configuration and formats the disk; its class is in the
    server's jar.
    """
    folder = tmp_path_factory.mktemp("kafka")
    inside, host, controller = (unused_tcp_port_factory() for _ in range(3))
    addresses = {
        "kafka:19092": f"127.0.0.1:{inside}",
        "kafka:29093": f"127.0.0.1:{controller}",
        "localhost:9092": f"127.0.0.1:{host}",
        "://:19092": f"://127.0.0.1:{inside}",
        "://:9092": f"://127.0.0.1:{host}",
        "://:29093": f"://127.0.0.1:{controller}",
        "/var/lib/kafka/data": str(folder / "data"),
    }
    own = {name: replaced(value, addresses) for name, value in SERVICES["kafka"]["environment"].items()}
    environment = container_environment(own, folder)
    java = str(asyncio.run(find_java()).executable)
    class_path = asyncio.run(find_jars(LocalKafkaSettings(data_dir=folder), ignore_report)).class_path
    for place in ("defaults", "mounted", "final"):
        (folder / place).mkdir()
    for name in ("server.properties", "log4j2.yaml", "tools-log4j2.yaml"):
        (folder / "defaults" / name).touch()
    setup = ["setup", "-D", f"{folder}/defaults", "-M", f"{folder}/mounted", "-F", f"{folder}/final"]
    command = [java, "-cp", class_path, "kafka.docker.KafkaDockerWrapper", *setup]
    subprocess.run(command, env=environment, check=True)
    heap = own["KAFKA_HEAP_OPTS"].split()
    # The image's JVM flags are for servers; these start it sooner.
    flags = [*heap, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path]
    with running([java, *flags, "kafka.Kafka", folder / "final" / "server.properties"], environment, folder) as process:
        wait_until(lambda: answers(f"127.0.0.1:{inside}"), process, folder, START_WITHIN_S)
        yield {"inside": f"127.0.0.1:{inside}", "host": f"127.0.0.1:{host}"}


def test_both_listeners_tell_their_clients_an_address_that_these_can_reach(kafka: dict[str, str]) -> None:
    for address in kafka.values():
        [broker] = AdminClient({"bootstrap.servers": address}).list_topics(timeout=10).brokers.values()
        assert f"{broker.host}:{broker.port}" == address


def test_a_topic_is_never_made_by_using_it(kafka: dict[str, str]) -> None:
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka["host"], "message.timeout.ms": 3000})
    producer.produce("nobody-made-it", b"", on_delivery=lambda error, _: errors.append(error))
    producer.flush()
    producer.close()
    assert errors
    assert errors[0] is not None
    assert "nobody-made-it" not in AdminClient({"bootstrap.servers": kafka["host"]}).list_topics(timeout=10).topics


def test_one_broker_is_enough_for_transactions_and_for_groups_with_short_sessions(kafka: dict[str, str]) -> None:
    connection: dict[str, Any] = {"bootstrap.servers": kafka["host"]}
    admin = AdminClient(connection)
    admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(timeout=10)
    producer = Producer({**connection, "transactional.id": "one"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("topic", b"committed")
    producer.commit_transaction(30)
    producer.close()
    consumer = Consumer(
        {**connection, "group.id": "group", "session.timeout.ms": 3000, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe(["topic"])
        message = consumer.poll(30)
    finally:
        consumer.close()
    assert message is not None
    assert message.value() == b"committed"


async def test_the_object_store_starts_with_its_command_and_takes_the_keys_of_the_file(
    tmp_path: Path, unused_tcp_port_factory: FreePort
) -> None:
    service = SERVICES["s3"]
    port = unused_tcp_port_factory()
    addresses = {"-dir=/data": f"-dir={tmp_path}", "0.0.0.0": "127.0.0.1", "8333": str(port)}
    # In a container all ports are free; here each is given.
    ports = {part: (unused_tcp_port_factory(), unused_tcp_port_factory()) for part in PARTS}
    extra = [f"-{part}.port={http}" for part, (http, _) in ports.items() if part != "s3"]
    extra += [f"-{part}.port.grpc={grpc}" for part, (_, grpc) in ports.items()]
    extra += ["-filer.localSocket=filer.sock", "-s3.localFilerSocket=filer.sock", "-s3.localSocket=s3.sock"]
    command = [str(find_weed(None)), *(replaced(argument, addresses) for argument in service["command"]), *extra]
    health = replaced(service["healthcheck"]["test"][-1], addresses)
    environment = container_environment(service["environment"], tmp_path)
    with removing_sockets(ports), running(command, environment, tmp_path / "run") as process:
        wait_until(lambda: is_healthy(health), process, tmp_path / "run", START_WITHIN_S)
        storage = StorageSettings(
            endpoint=f"127.0.0.1:{port}",
            access_key=SERVICES["gate"]["environment"]["HEADRACE_STORAGE__ACCESS_KEY"],
            secret_key=SERVICES["gate"]["environment"]["HEADRACE_STORAGE__SECRET_KEY"],
        )
        store = ObjectStore(storage)
        await store.ensure_bucket()
        await store.put("key", b"value")
        assert await store.get("key") == b"value"
        store.close()


@contextlib.contextmanager
def removing_sockets(ports: dict[str, tuple[int, int]]) -> Iterator[None]:
    """SeaweedFS leaves a socket of each part outside its folder."""
    yield
    for part, (_, grpc) in ports.items():
        Path(STRAY_SOCKET.format(part, grpc)).unlink(missing_ok=True)


def is_healthy(url: str) -> bool:
    """What `wget` of the health check finds."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
