"""Structured output as an executor sees it: matchers for the sequences that have a structure, masks for their rows."""

from collections.abc import Sequence

from engine.structured.grammars import Grammar, Grammars
from engine.structured.masks import MaskedRows, MaskFiller, StepMasks
from engine.structured.matcher import StructureMatcher
from models.structured import StructureCompiler
from models.tokenizer import Tokenizer
from schemas.structured import OutputStructure


class Structures:
    """Everything of one vocabulary. `prepare` may be called from any thread, the rest by the one that runs plans."""

    def __init__(self, tokenizer: Tokenizer, *, num_threads: int) -> None:
        self._vocab_size = tokenizer.vocab_size
        self._grammars = Grammars(StructureCompiler(tokenizer))
        self._filler = MaskFiller(num_threads=num_threads, vocab_size=tokenizer.vocab_size)

    def prepare(self, structure: OutputStructure) -> Grammar:
        """Compile a structure; `matcher` need not do so while somebody holds the result.

        Raises:
            InvalidValue: the structure is wrong.
            Unsupported: it cannot be enforced.
        """
        return self._grammars.get(structure)

    def matcher(self, structure: OutputStructure | None) -> StructureMatcher | None:
        """A matcher for one sequence; None if its text is free."""
        if structure is None:
            return None
        return StructureMatcher(self._grammars.get(structure), self._grammars, vocab_size=self._vocab_size)

    def masks(self, sequences: Sequence[MaskedRows]) -> StepMasks:
        """The masks of these rows."""
        return self._filler.fill(sequences)
