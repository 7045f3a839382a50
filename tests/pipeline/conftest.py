from collections.abc import AsyncIterator

import pytest

from pipeline.tokenize import PromptPool
from tests.models.gguf_writer import write_gguf

# Sent as a message, it keeps the template busy for ever (the sandbox limits one `range`, not three).
HANG = "hang"
HANGING_TEMPLATE = (
    "{% if messages[-1].content == 'hang' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a model of a few bytes (vocabulary 261, context 128) whose template can be made to hang."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return str(write_gguf(path, tokenizer__chat_template=HANGING_TEMPLATE))


@pytest.fixture
async def pool(tiny_model: str) -> AsyncIterator[PromptPool]:
    """A pool of one real child, with the model "tiny"."""
    started = PromptPool({"tiny": tiny_model}, num_processes=1, time_limit_s=0.5)
    await started.start()
    yield started
    await started.stop()
