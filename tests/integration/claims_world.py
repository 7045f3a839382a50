"""A whole headrace in the test's own event loop: gate, pipeline and worker of a tiny model, and a door before S3."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from consumers.gate.role import GateRole
from consumers.worker.role import WorkerRole
from headrace.client import Client
from headrace.local.background import BackgroundStack
from pipeline.role import PipelineRole
from runtime.role import Role
from runtime.storage import ObjectStore
from runtime.topics import create_missing
from schemas.claims import ClaimCheck, claim_for, claims_prefix
from schemas.codec import SESSION_TURN
from schemas.names import Names
from schemas.sessions import SessionTurn
from schemas.settings import EngineSettings, KafkaSettings, ModelSettings, Settings, TopicsSettings, WorkerSettings
from schemas.topics import registry
from tests.consumers.gate.door import Door
from tests.consumers.worker.tiny_model import MODEL_NAME, write_tiny_model
from tests.integration.plain_client import Answer, PlainClient

_READY_WITHIN_S = 60.0


class World(NamedTuple):
    """What a test works with. The roles reach object storage through `door`, everybody else directly."""

    settings: Settings
    names: Names
    door: Door
    client: Client
    plain: PlainClient
    objects: ObjectStore

    async def claim_keys(self) -> set[str]:
        """All claimed objects that there are."""
        return set(await self.objects.keys(claims_prefix(self.names)))

    async def put(self, content: object, *, tenant: str = "default") -> ClaimCheck:
        """Put an object as a client does, and give its claim."""
        encoded = msgspec.json.encode(content)
        claim = claim_for(encoded, self.names, tenant=tenant, now_ms=time.time() * 1000)
        await self.objects.put(claim.object, encoded)
        return claim

    async def produce(self, request_id: str, **body: Any) -> None:
        """Write a request as a client of another family does."""
        value = msgspec.json.encode({"id": request_id, "model": MODEL_NAME, **body})
        await asyncio.to_thread(self.plain.produce, value, key=body.get("session", request_id))

    async def answer(self, request_id: str) -> Answer:
        """Read the answer to a request as a client of another family does."""
        return await asyncio.to_thread(self.plain.answer, request_id)

    async def turns_of(self, session: str) -> list[SessionTurn]:
        """The objects of a session's turns, in order."""
        keys = await self.objects.keys(self.names.object_key(f"sessions/default/{session}/"))
        return [SESSION_TURN.decode(await self.objects.get(key)) for key in keys]


@asynccontextmanager
async def running_world(stack: BackgroundStack, namespace: str, folder: Path) -> AsyncIterator[World]:
    """All roles at work on topics of their own."""
    async with AsyncExitStack() as opened:
        door = await opened.enter_async_context(Door(str(stack.s3.endpoint)))
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=10_000),
            storage=stack.s3,
            topics=TopicsSettings(namespace=namespace, partitions=2),
            models={MODEL_NAME: ModelSettings(path=str(write_tiny_model(folder / "tiny.gguf")))},
            worker=WorkerSettings(model=MODEL_NAME, drain_timeout_s=1.0),
            engine=EngineSettings(dtype="float32", kv_bytes=64 << 20, num_threads=1),
        )
        names = Names(namespace)
        await create_missing(settings.kafka, registry(names, settings.topics, settings.models))
        behind_door = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        for_roles = msgspec.structs.replace(settings, storage=behind_door)
        await asyncio.gather(
            *(opened.enter_async_context(_running(kind(for_roles))) for kind in (GateRole, PipelineRole, WorkerRole))
        )
        plain = PlainClient(stack.bootstrap_servers, namespace)
        opened.callback(plain.close)
        objects = ObjectStore(settings.storage)
        opened.callback(objects.close)
        client = await opened.enter_async_context(Client(settings, timeout_s=60.0))
        # Else the roles would wait for it while they stop.
        opened.callback(door.open)
        yield World(settings, names, door, client, plain, objects)


@asynccontextmanager
async def _running(role: Role) -> AsyncIterator[None]:
    await role.start()
    run = asyncio.create_task(role.run())
    try:
        async with asyncio.timeout(_READY_WITHIN_S):
            while not role.health().is_ready:  # noqa: ASYNC110 - asked as an orchestrator asks, from outside
                await asyncio.sleep(0.05)
        yield
    finally:
        await role.stop()
        await run
