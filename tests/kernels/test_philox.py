"""The random numbers are Philox's, and each depends on its own place alone."""

import math

import pytest
import torch

from kernels.cpu.philox import Words, philox, uniform, uniform_all


def words(*values: int) -> Words:
    return Words(*(torch.tensor([value]) for value in values))


def signed(low: int, high: int) -> torch.Tensor:
    value = high << 32 | low
    return torch.tensor([value - (1 << 64) if value >= 1 << 63 else value])


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_known_answers_of_random123(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    """The vectors `philox4x32 10` of Random123's kat_vectors."""
    assert tuple(int(word) for word in philox(words(*counter), signed(*key))) == expected


def test_a_number_depends_on_seed_choice_index_and_token_alone() -> None:
    seed, choice, index = (torch.tensor(values) for values in ([7, 2**62, 7, 7], [0, 0, 1, 0], [5, 5, 5, 6]))
    everything = uniform_all(seed, choice, index, 1003)
    token_ids = torch.tensor([[1002, 0, 5], [3, 3, 4], [1, 2, 3], [999, 1000, 1001]])
    assert torch.equal(uniform(seed, choice, index, token_ids), everything.gather(1, token_ids))
    assert torch.equal(uniform_all(seed[1:2], choice[1:2], index[1:2], 1003), everything[1:2])
    assert len(set(everything.flatten().tolist())) == everything.numel()


def test_numbers_are_uniform_and_never_0_or_1() -> None:
    numbers = uniform_all(torch.arange(8), torch.zeros(8, dtype=torch.int64), torch.arange(8) * 3, 50_000)
    assert numbers.min() > 0
    assert numbers.max() < 1
    counts = torch.histc(numbers.float(), bins=100, min=0, max=1).double()
    expected = numbers.numel() / 100
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert abs(chi_square - 99) < 5 * math.sqrt(2 * 99)
