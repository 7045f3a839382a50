"""A matcher's state is its tokens: however it came there, it allows the same."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.structured.grammars import Grammars
from engine.structured.masks import MaskedRows, MaskFiller
from engine.structured.matcher import Mask, StructureMatcher
from models.catalog import open_model
from models.structured import StructureCompiler
from models.tokenizer import Tokenizer
from schemas.structured import OutputStructure
from tests.engine.structured.structures import INSATIABLE, PERSON, WORDS, of_choice, of_schema
from tests.engine.tiny import EOS, TOKENIZER
from tests.generated_schemas import generated_schema

TOKENIZERS = {"bytes": TOKENIZER, "smollm": open_model("smollm2-135m-instruct").tokenizer}
COMPILERS = {name: StructureCompiler(tokenizer) for name, tokenizer in TOKENIZERS.items()}
GRAMMARS = {name: Grammars(compiler) for name, compiler in COMPILERS.items()}


def matcher_of(structure: OutputStructure, name: str = "bytes") -> StructureMatcher:
    grammars = GRAMMARS[name]
    return StructureMatcher(grammars.get(structure), grammars, vocab_size=TOKENIZERS[name].vocab_size)


def allowed(mask: Mask) -> list[int]:
    token_ids: list[int] = np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist()
    return token_ids


def walk(matcher: StructureMatcher, tokenizer: Tokenizer, seed: int, num_tokens: int) -> Iterator[Mask]:
    """Take allowed tokens at random, and give the mask before each."""
    numbers = random.Random(seed)
    for _ in range(num_tokens):
        mask = matcher.mask()
        yield mask
        token_id = numbers.choice(allowed(mask))
        matcher.accept(token_id)
        assert matcher.fault is None
        if token_id in tokenizer.eos_token_ids:
            return


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_masks_are_the_same_after_any_way_there(name: str, seed: int) -> None:
    """Step by step with a mask each; from the tokens alone; in a grammar compiled anew; and after going back."""
    structure, tokenizer = of_schema(generated_schema(seed)), TOKENIZERS[name]
    grown, rebuilt = matcher_of(structure, name), matcher_of(structure, name)
    fresh = Grammars(COMPILERS[name])
    for mask in walk(grown, tokenizer, seed, num_tokens=40):
        token_ids = list(grown._token_ids)
        rebuilt.rebuild(token_ids)
        assert np.array_equal(rebuilt.mask(), mask)
        anew = StructureMatcher(fresh.get(structure), fresh, vocab_size=tokenizer.vocab_size)
        anew.rebuild(token_ids)
        assert np.array_equal(anew.mask(), mask)
        rebuilt.accept(allowed(mask)[-1])
        rebuilt.rollback(1)
        assert np.array_equal(rebuilt.mask(), mask)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), num_right=st.integers(0, 6), wrong=st.integers(0, 255))
def test_masks_along_a_draft_are_those_of_a_walk_along_it(name: str, seed: int, num_right: int, wrong: int) -> None:
    """Both ways: all sequences at once in threads, and one row after the other, which follows a fault."""
    structure, tokenizer = of_schema(generated_schema(seed)), TOKENIZERS[name]
    walked = matcher_of(structure, name)
    expected = list(walk(walked, tokenizer, seed, num_tokens=num_right + 1))
    draft = [*walked._token_ids[:num_right], wrong, 7]
    matcher = matcher_of(structure, name)
    filler = MaskFiller(num_threads=2, vocab_size=tokenizer.vocab_size)
    masks = filler.fill([MaskedRows(3, matcher_of(PERSON, name), []), MaskedRows(5, matcher, draft)])
    assert list(masks.places) == [3, *range(5, 6 + len(draft))]
    by_row = matcher.masks_for(draft)
    for place, mask in enumerate(expected[: num_right + 1]):
        assert np.array_equal(masks.bits[masks.places[5 + place]], mask)
        assert np.array_equal(by_row.masks[place], mask)
    # The state has not moved, and every mask behind a token that is not allowed leaves that row free.
    assert np.array_equal(matcher.mask(), expected[0])
    assert not masks.faults
    assert by_row.fault is None
    for place in range(len(by_row.masks), len(draft) + 1):
        assert (masks.bits[masks.places[5 + place]] == -1).all()


def test_the_end_is_allowed_where_the_grammar_may_end_and_nowhere_else() -> None:
    matcher = matcher_of(of_choice("a", "abc"))
    seen = []
    for char in "abc":
        seen.append((matcher.can_end, EOS in allowed(matcher.mask())))
        matcher.accept(ord(char))
    assert seen == [(False, False), (True, True), (False, False)]
    assert matcher.can_end
    assert allowed(matcher.mask()) == [EOS]
    matcher.accept(EOS)
    assert matcher.fault is None


def test_a_token_that_is_not_allowed_is_a_fault_until_it_is_taken_back() -> None:
    matcher = matcher_of(WORDS)
    matcher.accept(ord("a"))
    mask = matcher.mask()
    matcher.accept(ord("!"))
    fault = matcher.fault
    assert fault is not None
    assert "\n" not in fault
    matcher.rollback(1)
    assert matcher.fault is None
    assert np.array_equal(matcher.mask(), mask)


def test_tokens_that_lead_nowhere_are_a_fault_in_the_masks() -> None:
    """What a predecessor with another library has emitted may not fit."""
    matcher, fine = matcher_of(WORDS), matcher_of(WORDS)
    matcher.rebuild(list(b"no!"))
    masks = MaskFiller(num_threads=1, vocab_size=TOKENIZER.vocab_size).fill(
        [MaskedRows(0, matcher, [1, 2]), MaskedRows(3, fine, [])]
    )
    assert set(masks.faults) == {0, 1, 2}
    assert allowed(masks.bits[masks.places[3]]) == list(b"abcdefghijklmnopqrstuvwxyz")


@pytest.mark.timeout(60)
def test_an_answer_that_wears_its_grammar_out_harms_no_other() -> None:
    """Copies of a grammar share what they learn, and share its limits: whoever meets them goes on in a fresh one."""
    filler = MaskFiller(num_threads=2, vocab_size=TOKENIZER.vocab_size)
    grammars = Grammars(StructureCompiler(TOKENIZER, max_lexer_states=300))
    greedy, modest = (
        StructureMatcher(grammars.get(INSATIABLE), grammars, vocab_size=TOKENIZER.vocab_size) for _ in range(2)
    )
    first = filler.fill([MaskedRows(0, modest, [])]).bits[0].copy()
    numbers, used = random.Random(1), {greedy._grammar}
    while len(used) < 3:
        masks = filler.fill([MaskedRows(0, greedy, [])])
        assert not masks.faults
        used.add(greedy._grammar)
        greedy.accept(numbers.choice(list(b"ab")))
    masks = filler.fill([MaskedRows(0, modest, [])])
    assert not masks.faults
    assert np.array_equal(masks.bits[0], first)
