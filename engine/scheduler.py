"""Decides what each step computes: continuous batching with chunked prefill (Yu et al., "Orca", 2022; Agrawal et al.,
"Sarathi-Serve", 2024).

A pure function of its state: no clock, no randomness, no tensors. The rules, in the order of their weight:

- A running sequence that needs one row gets it every step; prompts share what is left of the token budget.
- If blocks run out, the running sequence of the last rank starts over later. The first one by rank never does, and it
  alone fits the pool, so that something always ends: there is no deadlock, and nobody waits for ever.
- A waiting sequence enters when all its tokens fit; nobody overtakes it to the memory. Interactive work displaces bulk.
- A prefix that a running sequence is computing is waited for, not computed twice.
- Bulk work stands back while people's prompts are computed, so that their first token does not wait for it.
- Drafts get what is left: nobody waits, starts over or loses a row because another's future is being guessed.
- After a step that raised, its sequences run alone, one after the other, until each has a token: only the guilty end.
"""

import bisect

from engine.chunks import chunk
from engine.drafting import offer_drafts
from engine.fairness import TenantShares
from engine.gates import Gates
from engine.kv.manager import KVManager, PrefixMatch
from engine.outline import Outline
from engine.plan import StepPlan
from engine.proposer import Proposer
from engine.queue import WaitingQueue
from engine.sequence import Sequence, SequenceState
from engine.suspects import Suspects
from engine.turns import BulkTurns


class Scheduler:
    """Owns the states of all sequences. `schedule` plans a step, `commit` records that it was computed."""

    def __init__(
        self, kv: KVManager, *, max_running: int, max_tokens_per_step: int, proposer: Proposer | None = None
    ) -> None:
        self._kv = kv
        self._proposer = proposer
        self._max_running = max_running
        self._max_tokens = max_tokens_per_step
        self._shares = TenantShares()
        self._queue = WaitingQueue(self._shares)
        self._running: list[Sequence] = []  # by rank
        self._gates = Gates(kv)
        self._suspects = Suspects()
        self._turns = BulkTurns()
        self._ended: list[int] = []
        self._num_live = 0
        self.num_steps = self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that want to run, preempted ones included."""
        return self._num_live - len(self._running)

    @property
    def has_work(self) -> bool:
        """Whether any sequence is alive."""
        return self._num_live > 0

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for its turn."""
        self._num_live += 1
        self._shares.enter(sequence.request.tenant)
        self._queue.push(sequence)

    def finish(self, sequence: Sequence, *, is_tainted: bool = False) -> None:
        """End a sequence and free its blocks; tainted ones, whose numbers are not finite, are cleared before reuse."""
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            self._ended.append(sequence.sequence_id)
        if is_tainted:
            self._kv.discard(sequence)
        else:
            self._kv.release(sequence)
        if self._proposer is not None:
            self._proposer.forget(sequence)
        sequence.state = SequenceState.FINISHED
        self._suspects.forget(sequence)
        self._num_live -= 1
        self._shares.leave(sequence.request.tenant)

    def schedule(self, now_s: float) -> StepPlan:
        """Plan the next step. Every sequence in it must be committed; if the step fails, take the plan back."""
        outline = Outline(budget=self._max_tokens)
        suspect = self._suspects.next
        if suspect is not None:
            self._run_alone(suspect, outline)
        else:
            self._run_together(outline, now_s)
            if self._proposer is not None:
                offer_drafts(outline, self._proposer, self._kv)
        self.num_steps += 1
        # A plan without rows is not run: what executors must know waits for the next one.
        ended = cleared = []
        if outline.rows:
            cleared = self._kv.take_dirty()
            ended, self._ended = self._ended, []
        return StepPlan(
            number=self.num_steps,
            ended=ended,
            cleared=cleared,
            started=outline.starts,
            copies=list(outline.copies.values()),
            steps=outline.steps,
        )

    def take_back(self, plan: StepPlan, sequences: list[Sequence]) -> list[Sequence]:
        """The plan's step raised: its sequences start over, each alone. Returns those that may not, to be finished."""
        self._ended += plan.ended
        for sequence in sequences:
            self._stop(sequence)
        self._kv.mark_dirty(plan.cleared)
        return [sequence for sequence in sequences if not self._suspects.accuse(sequence)]

    def commit(self, sequence: Sequence, num_rows: int) -> None:
        """Record that the KV of the next `num_rows` tokens is computed."""
        sequence.num_computed += num_rows
        self._kv.commit(sequence)

    def append(self, sequence: Sequence, token_id: int, *, is_drafted: bool = False) -> None:
        """Give a sequence its next token: a drafted one has its KV already, another is computed in a later step.

        In a step, drafted tokens come first. What is left of the draft after them was wrong, and its blocks are free.
        """
        sequence.token_ids.append(token_id)
        self._suspects.clear(sequence)
        self._shares.charge(sequence.request.tenant, 1)
        if is_drafted:
            self.commit(sequence, 1)
        elif self._proposer is not None:
            self._kv.trim(sequence)

    def _run_together(self, outline: Outline, now_s: float) -> None:
        people = [sequence for sequence in self._running if not sequence.is_bulk]
        bulk = self._running[len(people) :]
        num_decoding = sum(sequence.is_decoding for sequence in bulk)
        reserved = num_decoding if self._turns.is_due else 0
        outline.budget -= reserved
        self._continue_running(people, outline)
        self._admit_waiting(outline, now_s, with_bulk=False)
        outline.budget += reserved
        if not self._turns.stand_back(outline):
            kept = self._turns.keep_back(outline, num_decoding)
            outline.budget -= kept
            self._continue_running(bulk, outline)
            self._admit_waiting(outline, now_s, with_bulk=True)
            outline.budget += kept

    def _continue_running(self, sequences: list[Sequence], outline: Outline) -> None:
        prompt_budget = outline.budget - sum(sequence.is_decoding for sequence in sequences)
        for sequence in sequences:
            num_pending = sequence.num_pending
            num_rows = 1 if num_pending == 1 else chunk(sequence.num_computed, num_pending, prompt_budget)
            # Preempted on behalf of one before it, or no budget left for prompts.
            if sequence.state is not SequenceState.RUNNING or num_rows == 0:
                continue
            end = sequence.num_computed + num_rows
            if self._kv.has_place(sequence, end) or self._make_room(sequence, end, outline):
                outline.add(sequence, num_rows, self._kv.grow(sequence, end))
                prompt_budget -= 0 if num_pending == 1 else outline.costs[sequence]

    def _make_room(self, sequence: Sequence, num_tokens: int, outline: Outline) -> bool:
        """Preempt from the last rank on until the tokens fit; False if the sequence itself was the last."""
        while not self._kv.has_room(sequence, num_tokens):
            victim = self._running[-1]
            self._preempt(victim, outline)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, outline: Outline) -> None:
        """Let a sequence start over later, when its turn comes again."""
        self._stop(sequence)
        outline.drop(sequence)
        self.num_preemptions += 1
        self._queue.push(sequence)

    def _stop(self, sequence: Sequence) -> None:
        """Take a sequence's blocks. Its tokens stay, and its full blocks are cached for as long as may be."""
        self._running.remove(sequence)
        self._ended.append(sequence.sequence_id)
        self._kv.release(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1

    def _run_alone(self, sequence: Sequence, outline: Outline) -> None:
        """Plan a step of one sequence. It waits for no prefix: whoever computes that does not run now."""
        if sequence.state is SequenceState.RUNNING:
            num_rows = chunk(sequence.num_computed, sequence.num_pending, outline.budget)
            outline.add(sequence, num_rows, self._kv.grow(sequence, sequence.num_computed + num_rows))
            return
        match = self._kv.match(sequence)
        while not self._fits(sequence, match):
            self._preempt(self._running[-1], outline)
        self._admit(sequence, match, outline)

    def _admit_waiting(self, outline: Outline, now_s: float, *, with_bulk: bool) -> None:
        for sequence in self._gates.open():
            self._queue.push(sequence)
        while outline.budget > 0:
            waiting = self._queue.pop(now_s)
            if waiting is None:
                return
            if self._queue.gives_way(waiting) and not with_bulk:
                self._queue.push(waiting)
                return
            match = self._kv.match(waiting)
            if self._gates.park(waiting, match):
                continue
            if self._fits(waiting, match) or self._displace_bulk(waiting, match, outline):
                self._admit(waiting, match, outline)
            else:
                self._queue.push(waiting)
                return

    def _admit(self, sequence: Sequence, match: PrefixMatch, outline: Outline) -> None:
        self._kv.begin(sequence, match)
        copy = self._kv.grow(sequence, sequence.num_tokens)
        sequence.state = SequenceState.RUNNING
        self._queue.note_admitted(sequence)
        bisect.insort(self._running, sequence, key=lambda other: other.rank)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(match.num_tokens, sequence.num_prompt)
            self._shares.charge(sequence.request.tenant, sequence.num_pending)
        outline.started.append(sequence)
        outline.add(sequence, chunk(sequence.num_computed, sequence.num_pending, outline.budget), copy)

    def _fits(self, sequence: Sequence, match: PrefixMatch) -> bool:
        has_slot = len(self._running) < self._max_running
        return has_slot and self._kv.num_taken(sequence, match) <= self._kv.pool.num_available

    def _displace_bulk(self, sequence: Sequence, match: PrefixMatch, outline: Outline) -> bool:
        """Preempt bulk work, the latest first, if that makes room for a sequence that is not bulk."""
        if self._queue.gives_way(sequence):
            return False
        victims = [other for other in self._running if other.is_bulk]
        # Blocks that victims share with each other come free with the last of them: an upper bound, so tried, not sure.
        most = self._kv.pool.num_available + sum(len(victim.blocks) for victim in victims)
        if not victims or self._kv.num_taken(sequence, match) > most:
            return False
        while victims and not self._fits(sequence, match):
            self._preempt(victims.pop(), outline)
        return self._fits(sequence, match)
