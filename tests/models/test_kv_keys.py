import itertools
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.kv_keys import BLOCK_SIZE, BlockKeyChain, block_keys
from schemas.errors import InvalidValue

WHERE = {"model_hash": "5f4f", "kv_dtype": "bf16", "layout": "v1"}

token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=70)

PRINT_KEYS = """
import json
from models.kv_keys import block_keys
keys = block_keys(range(40), model_hash="5f4f", kv_dtype="bf16", layout="v1", adapter="a", salt="t")
print(json.dumps([key.hex() for key in keys]))
"""


def test_keys_are_the_same_in_every_process() -> None:
    def keys_with(hash_seed: str) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        printed = subprocess.check_output([sys.executable, "-c", PRINT_KEYS], env=environment)
        keys: list[str] = json.loads(printed)
        return keys

    assert keys_with("1") == keys_with("2")


def test_keys_do_not_change_from_release_to_release() -> None:
    """Blocks in a lower tier outlive the process: change these values only together with CONTEXT."""
    assert [key.hex() for key in block_keys(range(40), **WHERE, adapter="a", salt="t")] == [
        "8513a0b3d4c26fb67db74aa7671ca16849317fab22baa8c330a3e3606dee88f0",
        "30d30937d75f3edbee8a1ec9527c3aa3e077a1be1ad78f93d09cb5c7301cab1b",
    ]


@given(ids=token_ids, cuts=st.lists(st.integers(0, 70)))
def test_a_sequence_that_grows_has_the_keys_of_the_whole(ids: list[int], cuts: list[int]) -> None:
    chain = BlockKeyChain(**WHERE)
    borders = [0, *sorted(cuts), len(ids)]
    filled = [key for start, end in itertools.pairwise(borders) for key in chain.append(ids[start:end])]
    assert filled == chain.keys == block_keys(ids, **WHERE)
    assert len(filled) == len(ids) // BLOCK_SIZE


@given(ids=token_ids, length=st.integers(0, 70))
def test_a_prefix_has_the_first_keys(ids: list[int], length: int) -> None:
    prefix = block_keys(ids[:length], **WHERE)
    assert prefix == block_keys(ids, **WHERE)[: len(prefix)]


@given(ids=st.lists(st.integers(0, 2**32 - 2), min_size=48, max_size=48), place=st.integers(0, 47))
def test_another_token_changes_the_key_of_its_block_and_of_all_after_it(ids: list[int], place: int) -> None:
    changed = [*ids[:place], ids[place] + 1, *ids[place + 1 :]]
    same = [a == b for a, b in zip(block_keys(ids, **WHERE), block_keys(changed, **WHERE), strict=True)]
    assert same == [block < place // BLOCK_SIZE for block in range(3)]


def test_the_same_block_in_another_place_has_another_key() -> None:
    keys = block_keys([7] * 64, **WHERE)
    assert len(set(keys)) == 4


def test_everything_that_the_numbers_or_their_owner_depend_on_is_in_the_key() -> None:
    base = WHERE | {"adapter": "", "salt": ""}
    variants = [base, *({**base, name: value + "x"} for name, value in base.items())]
    variants += [{**base, "adapter": "ab", "salt": "c"}, {**base, "adapter": "a", "salt": "bc"}]
    variants += [{**base, "model_hash": "5f4fb", "kv_dtype": "f16"}]
    keys = [block_keys(range(16), **variant)[0] for variant in variants]
    assert len(set(keys)) == len(variants)


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_an_id_that_is_none_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidValue, match="32 bits"):
        block_keys([token_id] * BLOCK_SIZE, **WHERE)
