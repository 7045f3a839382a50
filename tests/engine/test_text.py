"""What an answer says, through the whole engine: whatever tokens a model chooses, the pieces are the whole text."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.engine import Engine
from engine.plan import Sample, SequenceStep
from tests.engine.simulation import Context, SimulatedExecutor
from tests.engine.tiny import EOS, SPEC, TOKENIZER, Clock, last, run, text, tiny_request, tokens

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
TEXTS = [
    f"my {FAMILY} and \U0001f1e9\U0001f1ea",
    "क्षत्रिय नमस्ते",
    "e\u0301 \u00e9 \ufdfa \u202e",
    "abab abc ababb",
    "\ufffd \x00 <|im_end|>",
]
STOPS = ["ab", "abc", "bab", "ababb", FAMILY, FAMILY[:2], "\u200d", "त्र", "é", "\ufffd", "\x00", " ", "<|im_end|>"]

bytes_of_texts = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=2).map(
    lambda texts: list("".join(texts).encode())
)
# Any byte is a token here, so this is broken UTF-8 of every kind, with special tokens in the middle of characters.
any_tokens = st.lists(st.integers(0, SPEC.vocab_size - 1).filter(lambda token_id: token_id != EOS), max_size=30)
scripts = bytes_of_texts | any_tokens | st.lists(st.sampled_from(list(b"ab c")), max_size=20)


class ScriptedExecutor(SimulatedExecutor):
    """A model that says what it is told, then ends."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(num_blocks=64)
        self._script = [*script, EOS]

    def _sample(self, step: SequenceStep, contexts: list[Context]) -> list[Sample]:
        index = self._outputs[step.sequence_id]
        self._outputs[step.sequence_id] += 1
        return [Sample(step.sequence_id, self._script[index])]


def engine(script: list[int]) -> Engine:
    return Engine(SPEC, TOKENIZER, ScriptedExecutor(script), EngineConfig(), make_chain=None, clock=Clock())


def cut_at_stop(whole: str, stops: list[str]) -> str:
    """Character by character: the text up to where it first ends with a stop string, of several the longest."""
    for end in range(1, len(whole) + 1):
        complete = [stop for stop in stops if whole[:end].endswith(stop)]
        if complete:
            return whole[: end - len(max(complete, key=len))]
    return whole


@settings(deadline=None)
@given(script=scripts, stops=st.lists(st.sampled_from(STOPS), max_size=3), max_tokens=st.integers(1, 60))
@example(script=list(FAMILY.encode()), stops=[FAMILY], max_tokens=60)
@example(script=list(f"x{FAMILY}".encode()), stops=[], max_tokens=7)
@example(script=list(b"beta gam"), stops=["beta gamma"], max_tokens=60)
@example(script=list(b"xabc"), stops=["ab", "abc"], max_tokens=60)
def test_the_joined_deltas_are_the_whole_decoded_up_to_a_stop_string(
    script: list[int], stops: list[str], max_tokens: int
) -> None:
    outputs = run(engine(script), [tiny_request("r", "hello", max_tokens=max_tokens, stop=stops)])
    said = tokens(outputs, "r")
    assert said == [*script, EOS][: len(said)]
    whole = TOKENIZER.decode(token_id for token_id in said if token_id != EOS)
    assert text(outputs, "r") == cut_at_stop(whole, stops)
    ends = last(outputs, "r")
    assert ends.finish_reason == ("stop" if ends.stop_reason is not None or EOS in said else "length")


@settings(deadline=None)
@given(script=scripts, stops=st.lists(st.sampled_from(STOPS), max_size=3), cut=st.integers(0, 60))
def test_a_successor_says_exactly_what_its_predecessor_had_not_said(
    script: list[int], stops: list[str], cut: int
) -> None:
    request = tiny_request("r", "hello", max_tokens=80, stop=stops)
    outputs = run(engine(script), [request])
    said = tokens(outputs, "r")
    cut = min(cut, len(said) - 1)
    before = "".join(output.text for output in outputs if output.index + len(output.token_ids) <= cut)
    resumed = tiny_request("r", "hello", max_tokens=80, stop=stops, emitted={0: said[:cut]} if cut else {})
    after = run(engine(script), [resumed])
    assert before + text(after, "r") == text(outputs, "r")
    assert [token_id for output in after for token_id in output.token_ids] == said[cut:]


def test_nothing_of_a_prompt_that_ends_in_half_a_character_is_in_the_answer() -> None:
    emoji = list(FAMILY.encode())
    outputs = run(engine([*emoji[2:], *b" ok"]), [tiny_request("r", emoji[:2], max_tokens=60)])
    assert text(outputs, "r") == bytes([*emoji[2:], *b" ok"]).decode(errors="replace")
    assert FAMILY[0] not in text(outputs, "r")
