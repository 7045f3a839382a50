"""The whole wiring of the pipeline on one screen: `turns` → context → tokenize → pack → `batches.<model>`."""

from collections.abc import Callable
from typing import Any

from pipeline.faust_app import KafkaApp, input_record
from pipeline.history import SessionHistory
from pipeline.intake import Intake
from pipeline.stage import Stage
from pipeline.tokenize import PromptPool
from pipeline.turn_claims import TurnClaims
from runtime.claims import ClaimStore
from runtime.storage import ObjectStore
from schemas.names import LANES, Names
from schemas.settings import Settings


def build_app(
    settings: Settings, pool: PromptPool, storage: ObjectStore, *, fail: Callable[[BaseException], None]
) -> KafkaApp:
    """The Faust app. `fail` is called with an error after which the process must end and its inputs be read again."""
    names = Names(settings.topics.namespace, settings.topics.generation)
    app = KafkaApp(names.pipeline_group, settings.kafka, fail=fail)
    history = SessionHistory(storage, max_turns=settings.pipeline.cached_session_turns)
    stage = Stage(settings, pool, history, TurnClaims(ClaimStore(storage), names, pool))
    intake = app.work = Intake(settings, stage, app.send_record, brake=app, fail=fail)

    @app.agent(app.raw_topic(*(names.turns(lane) for lane in LANES)), name="turns")
    async def turns(stream: Any) -> None:
        # Not a batch at a time (`take` acknowledges what it drops): each record waits for its own output.
        async for event in stream.noack().events():
            intake.take(input_record(event.message))

    return app
