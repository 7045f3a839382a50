"""What requests get when nothing disturbs them: their sequences run by an engine of their own."""

from engine.config import EngineConfig
from engine.engine import Engine
from engine.types import GenerationRequest
from models.catalog import open_model
from schemas.batches import Sequence
from schemas.settings import Settings
from tests.consumers.worker.live import ChoiceStream
from tests.consumers.worker.tiny_model import MODEL_NAME, TinyModel


def undisturbed(settings: Settings, model: TinyModel, members: list[Sequence]) -> dict[str, dict[int, ChoiceStream]]:
    """Tokens, text and finish reason of each choice, by request id."""
    engine = Engine.load(open_model(MODEL_NAME, str(model.path)), EngineConfig.from_settings(settings.engine))
    for member in members:
        engine.add(
            GenerationRequest(
                request_id=member.envelope.request_id,
                prompt_token_ids=member.prompt_token_ids,
                sampling=member.sampling,
            )
        )
    found: dict[str, dict[int, ChoiceStream]] = {}
    while engine.has_work:
        for output in engine.step():
            choice = found.setdefault(output.request_id, {}).setdefault(output.choice, ChoiceStream())
            choice.token_ids += output.token_ids
            choice.text += output.text
            choice.finish_reasons += [output.finish_reason] if output.finish_reason else []
    return found
