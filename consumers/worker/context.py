"""What all partitions of one worker share."""

from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient

from consumers.control import ControlReader
from consumers.worker.claims import WorkerClaims
from consumers.worker.plain import PlainProducer
from consumers.worker.port import EnginePort
from runtime.clock import BrokerClock
from schemas.envelope import ModelHashes
from schemas.names import Names
from schemas.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The clients and the engine of a worker, and who it is."""

    settings: Settings
    names: Names
    hashes: ModelHashes
    engine: EnginePort
    plain: PlainProducer
    admin: AIOKafkaAdminClient
    claims: WorkerClaims
    clock: BrokerClock
    control: ControlReader
    worker: str
    build: str
