"""Spends what a step has left on guesses, in blocks that nobody else wants in it."""

from engine.chunks import row_weight
from engine.kv.manager import KVManager
from engine.outline import Outline
from engine.proposer import Proposer


def offer_drafts(outline: Outline, proposer: Proposer, kv: KVManager) -> None:
    """Add drafts to sequences that are sampled, for as long as rows and blocks are left."""
    for sequence in outline.rows:
        most = min(outline.budget // row_weight(sequence.num_tokens), sequence.num_left - 1)
        if most < 1 or not outline.is_sampled(sequence):
            continue
        draft = proposer.propose(sequence, most)
        while draft and not kv.has_room(sequence, sequence.num_tokens + len(draft)):
            draft.pop()
        if draft:
            kv.grow(sequence, sequence.num_tokens + len(draft))
            outline.add_draft(sequence, draft)
