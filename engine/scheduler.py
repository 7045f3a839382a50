"""Decides what each step computes: continuous batching with chunked prefill (Yu et al., "Orca", 2022; Agrawal et al.,
"Sarathi-Serve", 2024).

A pure function of its state: no clock, no randomness, no tensors. The rules, in the order of their weight:

- A running sequence that needs one row gets it every step; prompts share what is left of the token budget.
- If blocks run out, the running sequence of the last rank starts over later. The first one by rank never does, and it
  alone fits the pool, so that something always ends: there is no deadlock, and nobody waits for ever.
- A waiting sequence enters when all its tokens fit; nobody overtakes it to the memory. Interactive work displaces bulk.
- A prefix that a running sequence is computing is waited for, not computed twice.
"""

import bisect
from dataclasses import dataclass, field

from engine.fairness import TenantShares
from engine.kv.manager import KVManager, PrefixMatch
from engine.plan import BlockCopy, SequenceStart, SequenceStep, StepPlan
from engine.queue import WaitingQueue
from engine.sequence import Sequence, SequenceState

# What a parked sequence waits for: the key of a block, or the id of its leader.
Gate = bytes | int


@dataclass(slots=True)
class _Draft:
    """A plan in the making: what each sequence computes, until it is preempted after all."""

    budget: int
    rows: dict[Sequence, int] = field(default_factory=dict)
    copies: dict[Sequence, BlockCopy] = field(default_factory=dict)
    started: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, num_rows: int, copy: BlockCopy | None) -> None:
        self.rows[sequence] = num_rows
        self.budget -= num_rows
        if copy is not None:
            self.copies[sequence] = copy

    def drop(self, sequence: Sequence) -> None:
        self.budget += self.rows.pop(sequence, 0)
        self.copies.pop(sequence, None)


class Scheduler:
    """Owns the states of all sequences. `schedule` plans a step, `commit` records that it was computed."""

    def __init__(self, kv: KVManager, *, max_running: int, max_tokens_per_step: int) -> None:
        self._kv = kv
        self._max_running = max_running
        self._max_tokens = max_tokens_per_step
        self._shares = TenantShares()
        self._queue = WaitingQueue(self._shares)
        self._running: list[Sequence] = []  # by rank
        self._parked: dict[Gate, list[Sequence]] = {}
        self._ended: list[int] = []
        self._cleared: list[int] = []
        self._num_live = 0
        self.num_steps = 0
        self.num_preemptions = 0

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
            self._cleared += self._kv.discard(sequence)
        else:
            self._kv.release(sequence)
        sequence.state = SequenceState.FINISHED
        self._num_live -= 1
        self._shares.leave(sequence.request.tenant)

    def schedule(self, now_s: float) -> StepPlan:
        """Plan the next step. Every sequence in it must be committed, or finished if the step fails."""
        draft = _Draft(budget=self._max_tokens)
        self._continue_running(draft)
        self._admit_waiting(draft, now_s)
        self.num_steps += 1
        # A plan without rows is not run: what executors must know waits for the next one.
        ended, cleared = (self._ended, self._cleared) if draft.rows else ([], [])
        if draft.rows:
            self._ended, self._cleared = [], []
        return StepPlan(
            number=self.num_steps,
            ended=ended,
            started=[_start(sequence) for sequence in draft.started if sequence in draft.rows],
            cleared=cleared,
            copies=list(draft.copies.values()),
            steps=[_step(sequence, num_rows) for sequence, num_rows in draft.rows.items()],
        )

    def commit(self, sequence: Sequence, num_rows: int) -> None:
        """Record that the rows of a step are computed."""
        sequence.num_computed += num_rows
        self._kv.commit(sequence)

    def append(self, sequence: Sequence, token_id: int) -> None:
        """Give a sequence its next token, to be computed in a later step."""
        sequence.token_ids.append(token_id)
        self._shares.charge(sequence.request.tenant, 1)

    def _continue_running(self, draft: _Draft) -> None:
        prompt_budget = draft.budget - sum(sequence.is_decoding for sequence in self._running)
        for sequence in list(self._running):
            num_rows = 1 if sequence.is_decoding else min(sequence.num_pending, prompt_budget)
            # Preempted on behalf of one before it, or no budget left for prompts.
            if sequence.state is not SequenceState.RUNNING or num_rows == 0:
                continue
            if self._make_room(sequence, sequence.num_computed + num_rows, draft):
                draft.add(sequence, num_rows, self._kv.grow(sequence, sequence.num_computed + num_rows))
                prompt_budget -= 0 if sequence.is_decoding else num_rows

    def _make_room(self, sequence: Sequence, num_tokens: int, draft: _Draft) -> bool:
        """Preempt from the last rank on until the tokens fit; False if the sequence itself was the last."""
        while self._kv.num_missing(sequence, num_tokens) > self._kv.pool.num_available:
            victim = self._running[-1]
            self._preempt(victim, draft)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, draft: _Draft) -> None:
        """Let a sequence start over later. Its tokens stay, and its full blocks are cached for as long as may be."""
        self._running.remove(sequence)
        self._ended.append(sequence.sequence_id)
        self._kv.release(sequence)
        draft.drop(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._queue.push(sequence)

    def _admit_waiting(self, draft: _Draft, now_s: float) -> None:
        self._open_gates()
        while draft.budget > 0:
            sequence = self._queue.pop(now_s)
            if sequence is None:
                return
            match = self._kv.match(sequence)
            gate = self._gate(sequence, match)
            if gate is not None:
                self._parked.setdefault(gate, []).append(sequence)
            elif self._fits(sequence, match) or self._displace_bulk(sequence, match, draft):
                self._admit(sequence, match, draft)
            else:
                self._queue.push(sequence)
                return

    def _admit(self, sequence: Sequence, match: PrefixMatch, draft: _Draft) -> None:
        self._kv.begin(sequence, match)
        copy = self._kv.grow(sequence, sequence.num_tokens)
        sequence.state = SequenceState.RUNNING
        self._queue.note_admitted(sequence)
        bisect.insort(self._running, sequence, key=lambda other: other.rank)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(match.num_tokens, sequence.num_prompt)
            self._shares.charge(sequence.request.tenant, sequence.num_pending)
        draft.started.append(sequence)
        draft.add(sequence, min(sequence.num_pending, draft.budget), copy)

    def _gate(self, sequence: Sequence, match: PrefixMatch) -> Gate | None:
        """What to wait for before this sequence may run, because another one computes the same just now."""
        leader = sequence.leader
        if leader is not None and self._is_shut(leader):
            return leader.sequence_id
        return match.awaited

    def _is_shut(self, leader: Sequence) -> bool:
        return leader.state is not SequenceState.FINISHED and leader.num_computed < leader.num_prompt

    def _open_gates(self) -> None:
        """Back to the queue with those whose wait is over: the block is there, or will not come."""
        for gate, sequences in list(self._parked.items()):
            if isinstance(gate, bytes):
                is_shut = self._kv.is_claimed(gate)
            else:
                leader = sequences[0].leader
                is_shut = leader is not None and self._is_shut(leader)
            if not is_shut:
                del self._parked[gate]
                for sequence in sequences:
                    self._queue.push(sequence)

    def _fits(self, sequence: Sequence, match: PrefixMatch) -> bool:
        has_slot = len(self._running) < self._max_running
        return has_slot and self._kv.num_taken(sequence, match) <= self._kv.pool.num_available

    def _displace_bulk(self, sequence: Sequence, match: PrefixMatch, draft: _Draft) -> bool:
        """Preempt bulk work, the latest first, if that makes room for a sequence that is not bulk."""
        if self._queue.gives_way(sequence):
            return False
        victims = [other for other in self._running if other.is_bulk]
        # Blocks that victims share with each other come free with the last of them: an upper bound, so tried, not sure.
        most = self._kv.pool.num_available + sum(len(victim.blocks) for victim in victims)
        if not victims or self._kv.num_taken(sequence, match) > most:
            return False
        while victims and not self._fits(sequence, match):
            self._preempt(victims.pop(), draft)
        return self._fits(sequence, match)


def _start(sequence: Sequence) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence.sequence_id,
        choice=sequence.choice,
        num_prompt=sequence.num_prompt,
        token_ids=list(sequence.token_ids),
        sampling=sequence.request.sampling,
        is_first=sequence.num_preemptions == 0,
    )


def _step(sequence: Sequence, num_rows: int) -> SequenceStep:
    end = sequence.num_computed + num_rows
    return SequenceStep(
        sequence_id=sequence.sequence_id,
        start=sequence.num_computed,
        token_ids=sequence.token_ids[sequence.num_computed : end],
        block_table=list(sequence.blocks),
        is_sampled=end == sequence.num_tokens,
    )
