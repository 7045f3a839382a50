"""Compiled structures, kept for the next request that asks for the same. Compiling is kept off the step loop."""

import threading
import weakref
from collections import OrderedDict

from llguidance import LLMatcher

from models.structured import StructureCompiler
from schemas.structured import OutputStructure

# Measured on generated schemas: 70 kB for one of 300 bytes, 2.2 MB for 64 kB of enum; what a lexer learns comes on top.
BASE_BYTES = 64 * 1024
BYTES_PER_SOURCE_BYTE = 40


class Grammar:
    """A compiled structure. It stays compiled while somebody holds it. Its copies share what they learn."""

    def __init__(self, structure: OutputStructure, matcher: LLMatcher) -> None:
        self.structure = structure
        self.num_bytes = BASE_BYTES + BYTES_PER_SOURCE_BYTE * len(structure.source)
        self._matcher = matcher

    def start(self) -> LLMatcher:
        """A matcher at the beginning of an answer."""
        return self._matcher.deep_copy()


class Grammars:
    """All that is compiled: what somebody holds, and beyond that the latest ones up to `max_bytes`, by estimate.

    May be used by several threads.
    """

    def __init__(self, compiler: StructureCompiler, *, max_bytes: int = 64 << 20) -> None:
        self._compiler = compiler
        self._max_bytes = max_bytes
        self._held: weakref.WeakValueDictionary[OutputStructure, Grammar] = weakref.WeakValueDictionary()
        self._latest: OrderedDict[OutputStructure, Grammar] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def get(self, structure: OutputStructure) -> Grammar:
        """The grammar of a structure, which is compiled if it is new.

        Raises:
            InvalidValue, Unsupported: as `StructureCompiler.compile`.
        """
        with self._lock:
            known = self._held.get(structure)
        return self._remember(known or self._compiled(structure))

    def renewed(self, worn: Grammar) -> Grammar:
        """The same, compiled anew: what its copies have learnt together has reached a limit."""
        with self._lock:
            current = self._held.get(worn.structure)
        if current is not None and current is not worn:
            return self._remember(current)
        return self._remember(self._compiled(worn.structure))

    def _compiled(self, structure: OutputStructure) -> Grammar:
        return Grammar(structure, self._compiler.compile(structure))

    def _remember(self, grammar: Grammar) -> Grammar:
        with self._lock:
            before = self._latest.pop(grammar.structure, None)
            self._num_bytes += grammar.num_bytes - (before.num_bytes if before else 0)
            self._held[grammar.structure] = self._latest[grammar.structure] = grammar
            while self._num_bytes > self._max_bytes and len(self._latest) > 1:
                _, dropped = self._latest.popitem(last=False)
                self._num_bytes -= dropped.num_bytes
        return grammar
