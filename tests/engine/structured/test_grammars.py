"""What is compiled stays so while it is of use, and no longer than there is room."""

import gc
import threading
import weakref

import pytest
from llguidance import LLMatcher

from engine.structured.grammars import BASE_BYTES, BYTES_PER_SOURCE_BYTE, Grammars
from models.structured import StructureCompiler
from schemas.errors import Unsupported
from schemas.structured import OutputStructure
from tests.engine.structured.structures import PERSON, WORDS, of_regex, of_schema
from tests.engine.tiny import TOKENIZER


class CountingCompiler(StructureCompiler):
    """The real compiler, and how often it was used."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER)
        self.compiled: list[OutputStructure] = []

    def compile(self, structure: OutputStructure, *, param: str = "structure") -> LLMatcher:
        """See `StructureCompiler`."""
        self.compiled.append(structure)
        return super().compile(structure, param=param)


def grammars(compiler: CountingCompiler, num_kept: int = 100) -> Grammars:
    """Room for so many of the structures that `small` gives."""
    return Grammars(compiler, max_bytes=num_kept * (BASE_BYTES + BYTES_PER_SOURCE_BYTE * 2))


def small(number: int) -> OutputStructure:
    return of_regex(f"{number:02}")


def test_the_same_structure_is_compiled_once() -> None:
    compiler = CountingCompiler()
    kept = grammars(compiler)
    first = kept.get(PERSON)
    assert kept.get(OutputStructure(kind=PERSON.kind, source=str(PERSON.source))) is first
    assert kept.get(WORDS) is not first
    assert compiler.compiled == [PERSON, WORDS]


def test_what_was_not_asked_for_longest_goes_first() -> None:
    compiler = CountingCompiler()
    kept = grammars(compiler, num_kept=3)
    for number in (0, 1, 2, 0, 3):
        kept.get(small(number))
    del compiler.compiled[:]
    gc.collect()
    for number in (0, 2, 3, 1):
        kept.get(small(number))
    assert compiler.compiled == [small(1)]


def test_what_somebody_holds_stays_whatever_comes() -> None:
    compiler = CountingCompiler()
    kept = grammars(compiler, num_kept=2)
    held = kept.get(small(99))
    for number in range(10):
        kept.get(small(number))
    assert kept.get(small(99)) is held
    assert compiler.compiled.count(small(99)) == 1


def test_what_was_dropped_is_gone_from_memory() -> None:
    kept = grammars(CountingCompiler(), num_kept=1)
    dropped = weakref.ref(kept.get(small(1)))
    kept.get(small(2))
    gc.collect()
    assert dropped() is None


def test_one_that_is_larger_than_all_the_room_is_kept_alone() -> None:
    compiler = CountingCompiler()
    kept = grammars(compiler, num_kept=2)
    large = of_schema({"enum": [f"value {number}" for number in range(1000)]})
    kept.get(small(1))
    kept.get(large)
    gc.collect()
    kept.get(large)
    kept.get(small(1))
    assert compiler.compiled == [small(1), large, small(1)]


def test_a_worn_grammar_is_replaced_once_for_all_who_share_it() -> None:
    compiler = CountingCompiler()
    kept = grammars(compiler)
    worn = kept.get(WORDS)
    fresh = kept.renewed(worn)
    assert fresh is not worn
    assert kept.renewed(worn) is fresh
    assert kept.get(WORDS) is fresh
    assert len(compiler.compiled) == 2


def test_what_cannot_be_compiled_is_refused_each_time_and_never_kept() -> None:
    kept = grammars(CountingCompiler())
    for _ in range(2):
        with pytest.raises(Unsupported, match="not"):
            kept.get(of_schema({"not": {}}))


def test_threads_may_ask_at_once() -> None:
    compiler = CountingCompiler()
    kept = grammars(compiler, num_kept=4)
    failures: list[BaseException] = []

    def ask(offset: int) -> None:
        try:
            for number in range(60):
                grammar = kept.get(small((number + offset) % 8))
                assert grammar.structure == small((number + offset) % 8)
                assert not grammar.start().is_error()
        except BaseException as error:  # noqa: BLE001 - raised again below, where it fails the test
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
