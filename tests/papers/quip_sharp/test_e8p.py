"""The E8P codebook: its counts, pinned words, lattice membership and exact encoder (oracles 1 and 2, traps v and vi)."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.quip_sharp import e8p
from papers.quip_sharp.e8p import decode, encode


def codebook() -> torch.Tensor:
    """All codewords, (65536, 8) float32."""
    return torch.from_numpy(e8p.codebook().copy())


def source_set() -> torch.Tensor:
    return torch.from_numpy(e8p.source_set().copy())


def nearest_distance(x: torch.Tensor) -> torch.Tensor:
    """Squared distance to the nearest of all 65,536 codewords, by brute force in float64."""
    table = codebook().double()
    scores = [(part @ table.T * 2 - table.square().sum(1)).amax(1) for part in x.double().split(100)]
    return x.double().square().sum(1) - torch.cat(scores)


def in_e8(x: torch.Tensor) -> torch.Tensor:
    """Rows that lie in E8: all integers or all half-integers, with an even sum."""
    integer = (x == x.round()).all(1)
    half = (x - 0.5 == (x - 0.5).round()).all(1)
    return (integer | half) & (x.sum(1) % 2 == 0)


def test_source_set_has_256_rows_with_the_papers_norms():
    S = source_set()
    assert S.shape == (256, 8)
    assert len(S.unique(dim=0)) == 256
    assert Counter(S.square().sum(1).int().tolist()) == {2: 1, 4: 8, 6: 28, 8: 64, 10: 126, 12: 29}
    assert set(S.unique().tolist()) == {0.5, 1.5, 2.5}
    assert e8p.is_odd().sum() == 149
    assert S[0].tolist() == [0.5] * 8
    assert S[1].tolist() == [0.5] * 7 + [1.5]
    assert S[2].tolist() == [0.5] * 7 + [2.5]
    assert S[3].tolist() == [0.5] * 6 + [1.5, 0.5]
    assert S[226].tolist() == [2.5, 1.5] + [0.5] * 6


def test_two_bit_codebook_has_65536_distinct_words():
    C = codebook()
    assert C.shape == (65536, 8)
    assert len(C.unique(dim=0)) == 65536
    assert set(C.abs().unique().tolist()) == {0.25, 0.75, 1.25, 1.75, 2.25, 2.75}
    norms = C.square().sum(1)
    assert norms.min() == 0.5
    assert norms.max() == 16.5
    assert norms.double().mean() == 9.5703125
    assert C.double().sum(0).abs().max() == 0  # centroid exactly zero


def test_every_codeword_lies_in_e8_plus_a_quarter():
    shifted = codebook() - 0.25
    assert in_e8(shifted).all()
    assert (shifted[:, 0] % 1 == 0).sum() == 32768  # half of them integer vectors, half half-integer ones


@pytest.mark.parametrize(
    ("word", "vector"),
    [
        (0, [0.75] * 8),
        (1, [0.25] * 8),
        (2, [-0.75, 0.25, -0.75, 0.25, 0.25, 0.25, 0.25, 0.25]),
        (255, [-0.25] * 8),
        (256, [0.75] * 7 + [-1.25]),
        (5527, [0.25, -0.75, -0.75, 0.25, -1.75, 0.25, 1.25, 1.25]),
        (65535, [-1.25, -1.25, -0.25, -0.25, -1.25, -1.25, -1.25, 0.75]),
    ],
)
def test_pinned_words(word, vector):
    """Traps v and vi: the parity bit belongs to coordinate 8 and bit 0, and even patterns are shifted by +1/4."""
    assert decode(torch.tensor(word)).tolist() == vector
    assert encode(torch.tensor(vector)).item() == word


def test_decoder_table_packs_into_one_kibibyte():
    table = e8p.packed_table()
    assert [hex(v) for v in table[[0, 1, 2, 3, 255]].tolist()] == [
        "0x99999999",
        "0x59999999",
        "0xd9999999",
        "0x7999b999",
        "0x7b9bbb9b",
    ]
    assert table.size * 4 == 1024
    assert table.min() >= 0
    assert table.max() < 2**32
    signed = e8p.source_set().copy()
    signed[e8p.is_odd(), 7] *= -1
    nibbles = (table[:, None] >> (4 * np.arange(8))) & 15
    assert np.array_equal((nibbles - 8) / 2, signed[:, [0, 2, 4, 6, 1, 3, 5, 7]])


def test_encode_inverts_decode_on_every_word():
    words = torch.arange(65536)
    assert torch.equal(encode(decode(words)), words)


def test_part_grid_has_1366_rows():
    assert e8p.part_grid().shape == (1366, 8)


@pytest.mark.parametrize(("scale", "n"), [(0.3, 200), (0.9, 200), (1.03, 1000), (2.0, 300)])
@pytest.mark.parametrize("tails", ["gaussian", "heavy"])
def test_encode_finds_the_brute_force_nearest(scale, n, tails):
    n = n if tails == "gaussian" else n // 4  # each vector is compared with all 65,536 words
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, 8, generator=generator, dtype=torch.float64) * scale
    if tails == "heavy":  # a multivariate t: points far outside the ball, where the lattice decoder alone is wrong
        x = x / torch.rand(n, 1, generator=generator, dtype=torch.float64).sqrt()
    found = (x - decode(encode(x)).double()).square().sum(1)
    assert (found - nearest_distance(x)).abs().max() < 1e-9


def test_encode_is_exact_where_distances_tie():
    """On a grid of quarters many codewords are equally near: any of them will do, but always the same one."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-8, 9, (600, 8), generator=generator).float() / 4
    words = encode(x)
    found = (x - decode(words)).square().sum(1).double()
    assert (found - nearest_distance(x)).abs().max() < 1e-9
    order = torch.randperm(600, generator=generator)
    assert torch.equal(encode(x[order]), words[order])


def test_ties_between_the_shifts_go_to_plus_a_quarter():
    """0 lies halfway between (1/4)^8 = (1/2)^8 - 1/4 and (-1/4)^8 = (-1/2)^8 + 1/4."""
    assert encode(torch.zeros(8)).item() == 255
    assert decode(torch.tensor(255)).tolist() == [-0.25] * 8


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=8, max_size=8))
def test_no_codeword_is_nearer_than_the_one_encoded(values):
    x = torch.tensor(values, dtype=torch.float64)[None]
    found = (x - decode(encode(x)).double()).square().sum(1)
    assert found <= nearest_distance(x) + 1e-6 * (1 + found)


def test_encode_does_not_depend_on_chunking(monkeypatch):
    x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(1)) * 1.5
    whole = encode(x)
    monkeypatch.setattr(e8p, "CHUNK", 7)
    monkeypatch.setattr(e8p, "SEARCH_CHUNK", 3)
    assert torch.equal(encode(x), whole)


def test_shapes_and_dtypes():
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    words = encode(x)
    assert words.shape == (3, 5)
    assert words.dtype == torch.int64
    assert decode(words).shape == (3, 5, 8)
    assert decode(words).dtype == torch.float32
    assert encode(torch.empty(0, 8)).shape == (0,)
    assert encode(x.bfloat16()).shape == (3, 5)


def test_encode_refuses_what_it_cannot_encode():
    with pytest.raises(ValueError, match="8 weights"):
        encode(torch.zeros(3, 7))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="NaN or infinite"):
            encode(torch.full((1, 8), bad))


def test_gaussian_error_is_below_every_smaller_lattice():
    """E2: 0.0910 per weight at the codebook's scale (Lloyd-Max 0.1175, D4 0.1023, the rate-distortion limit 0.0625)."""
    x = torch.randn(20000, 8, generator=torch.Generator().manual_seed(0))
    mse = (decode(encode(x * 1.03)) / 1.03 - x).square().mean().item()
    assert 0.0895 < mse < 0.0925


# ----------------------------------------------------------------------------------------------- facts about E8


def test_theta_series_of_e8():
    """1 + 240 q + 2160 q^2 + 6720 q^3: no vector of norm^2 1 or odd, 240 roots of norm^2 2, and so on."""
    integer = torch.tensor(list(product((-2.0, -1.0, 0.0, 1.0, 2.0), repeat=8)))
    half = torch.tensor(list(product((-1.5, -0.5, 0.5, 1.5), repeat=8)))
    count = Counter()
    for grid in (integer, half):
        norms = grid.square().sum(1)
        near = grid[norms <= 6]
        count.update(near[in_e8(near)].square().sum(1).int().tolist())
    assert count == {0: 1, 2: 240, 4: 2160, 6: 6720}


def test_flipping_an_even_number_of_signs_stays_in_d8hat_and_an_odd_number_leaves_it():
    x = source_set()[torch.from_numpy(~e8p.is_odd())]
    for flips in range(9):
        y = x.clone()
        y[:, :flips] *= -1
        assert bool((y.sum(1) % 2 == 0).all()) == (flips % 2 == 0)
