"""The named quantisers: errors on Gaussians, residual stages, exact packing (oracles 13 and 14, experiment E2)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.quip_sharp import codebooks, lookup
from papers.quip_sharp.codebooks import NAMES, d4_ball, e8_ball, get, lloyd_max, residual


def gaussian(n: int, block: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n // block, block, generator=torch.Generator().manual_seed(seed))


def mse(codebook, x: torch.Tensor) -> float:
    return (codebook.quantize(x * codebook.scale)[0] / codebook.scale - x).square().mean().item()


@pytest.mark.parametrize("name", NAMES)
def test_integers_are_quantised_as_numbers(name):
    codebook = get(name)
    x = torch.full((3, codebook.block), 2)
    assert torch.equal(codebook.quantize(x)[0], codebook.quantize(x.float())[0])


def test_the_names():
    assert NAMES == ("e8p", "e8p_rvq3", "e8p_rvq4", "e8_1bit", "d4", "scalar2", "scalar3", "scalar4")
    with pytest.raises(ValueError, match="e8p_rvq3"):
        get("e9")
    with pytest.raises(ValueError, match="no residual"):
        get("e8p", residual_scale=2.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_code_takes_bits_times_block_bits(name):
    codebook = get(name)
    assert sum(codebook.widths) == codebook.bits * codebook.block
    x = gaussian(8000, codebook.block)
    x_hat, codes = codebook.quantize(x)
    assert x_hat.shape == x.shape
    assert codes.shape == x.shape[:-1]
    assert codes.min() >= 0
    assert codes.max() < 2 ** (codebook.bits * codebook.block)
    assert torch.equal(codebook.decode(codes), x_hat)
    assert codebook.quantize(x.double())[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("name", "value"),  # measured on 1e5 samples by another implementation
    [
        ("e8p", 0.0910),
        ("e8p_rvq3", 0.02937),
        ("e8p_rvq4", 0.0095),
        ("d4", 0.1027),
        ("scalar2", 0.1188),
        ("scalar3", 0.03744),
        ("scalar4", 0.01154),
    ],
)
def test_gaussian_error_of_each_codebook(name, value):
    codebook = get(name)
    assert mse(codebook, gaussian(240_000, codebook.block)) == pytest.approx(value, rel=0.02)


def test_residual_scale_4_is_better_than_the_default_at_scale_0_9():
    x = gaussian(80_000, 8)
    error = {r: (get("e8p_rvq4", r).quantize(x * 0.9)[0] / 0.9 - x).square().mean().item() for r in (3.45, 4.0)}
    assert error[4.0] < error[3.45]
    assert error[3.45] == pytest.approx(0.0087, rel=0.02)
    assert error[4.0] == pytest.approx(0.0083, rel=0.03)


@pytest.mark.parametrize("name", ["e8_1bit", "d4"])
def test_table_codebooks_find_the_brute_force_nearest(name):
    grid = lookup.tensor({"e8_1bit": e8_ball, "d4": d4_ball}[name], dtype=torch.float32)
    x = gaussian(16_000, grid.shape[1]).double()
    found = (get(name).quantize(x)[0] - x).square().sum(1)
    assert torch.allclose(found, torch.cdist(x, grid.double()).amin(1) ** 2, atol=1e-9)


def test_one_bit_codebook_is_the_e8_ball():
    ball = lookup.tensor(e8_ball, dtype=torch.float32)
    assert len(ball.unique(dim=0)) == 256
    norms = ball.square().sum(1)
    assert [(norms == k).sum().item() for k in (0, 2, 4)] == [1, 240, 15]
    assert (ball.sum(1) % 2 == 0).all()
    assert ball[241].tolist() == [2.0] + [0.0] * 7
    assert not (ball == torch.tensor([0.0] * 7 + [-2.0])).all(1).any()


def test_d4_codebook_has_the_shells_of_the_lattice():
    ball = lookup.tensor(d4_ball, dtype=torch.float32)
    assert len(ball.unique(dim=0)) == 256
    assert [(ball.square().sum(1) == k).sum().item() for k in (1, 3, 5, 7, 9)] == [8, 32, 48, 64, 104]


def test_scalar_grid_is_half_integers_clipped_at_the_ends():
    x = torch.tensor([[-9.0], [-0.1], [0.1], [1.2], [9.0]])
    assert get("scalar2").quantize(x)[0].squeeze().tolist() == [-1.5, -0.5, 0.5, 1.5, 1.5]
    assert get("scalar2").quantize(x)[1].tolist() == [0, 1, 2, 3, 3]


# ------------------------------------------------------------------------------------------------ residual stages


def test_three_bits_with_an_infinite_residual_scale_are_two_bits():
    x = gaussian(8000, 8)
    assert torch.allclose(get("e8p_rvq3", 1e9).quantize(x)[0], get("e8p").quantize(x)[0], atol=1e-6)


def test_a_second_stage_that_contains_zero_never_hurts():
    x = gaussian(40_000, 8) * 1.3
    one, two = get("e8p").quantize(x)[0], get("e8p_rvq3").quantize(x)[0]
    assert ((two - x).square().sum(1) <= (one - x).square().sum(1) + 1e-6).all()


def test_a_second_stage_without_zero_can_hurt():
    """E8P has no zero vector: a point that the first stage hits exactly is moved away by the second."""
    x = get("e8p").decode(torch.arange(0, 65536, 997))
    error = (get("e8p_rvq4").quantize(x)[0] - x).square().sum(1)
    assert error.min() > 0.01


def test_stages_lie_side_by_side_in_the_code():
    x = gaussian(800, 8)
    first = get("e8p").encode(x)
    for name, width in (("e8p_rvq3", 8), ("e8p_rvq4", 16)):
        assert torch.equal(get(name).encode(x) >> width, first)
    rvq3 = residual("again", 1.0, 2.04, get("e8p"), get("e8_1bit"))
    assert torch.equal(rvq3.encode(x), get("e8p_rvq3").encode(x))


# -------------------------------------------------------------------------------------------------------- packing


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), m=st.integers(1, 5), blocks=st.integers(1, 37), seed=st.integers(0, 999))
def test_packing_keeps_every_code_in_exactly_its_bits(name, m, blocks, seed):
    codebook = get(name)
    high = 2 ** (codebook.bits * codebook.block)
    codes = torch.randint(high, (m, blocks), generator=torch.Generator().manual_seed(seed))
    packed = codebook.pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.shape == (m, codebook.row_bytes(blocks))
    assert torch.equal(codebook.unpack(packed, blocks), codes)
    bits = codebook.bits * codebook.block * blocks
    assert bits <= 8 * packed.shape[1] < bits + 8 * len(codebook.widths)


@pytest.mark.parametrize(("name", "bits"), [("e8p", 2), ("e8p_rvq3", 3), ("e8p_rvq4", 4), ("scalar3", 3)])
def test_bits_per_weight_are_exact_for_whole_bytes(name, bits):
    codebook = get(name)
    assert codebook.row_bytes(4096 // codebook.block) * 8 / 4096 == bits


def test_four_bit_rows_hold_first_words_then_residual_words():
    codes = torch.tensor([[0x1234_5678, 0x0001_FFFE]])
    assert get("e8p_rvq4").pack(codes).tolist() == [[0x34, 0x12, 0x01, 0x00, 0x78, 0x56, 0xFE, 0xFF]]
    assert get("e8p_rvq3").pack(torch.tensor([[0x1234_56]])).tolist() == [[0x34, 0x12, 0x56]]


def test_unencodable_inputs_are_value_errors():
    for name in NAMES:
        with pytest.raises(ValueError, match="NaN or infinite"):
            get(name).quantize(torch.full((1, get(name).block), float("nan")))
    with pytest.raises(ValueError, match="blocks of 4"):
        get("d4").quantize(torch.zeros(1, 8))


# ------------------------------------------------------------------------------------------------------ references


@pytest.mark.parametrize(("bits", "value"), [(1, 0.363380), (2, 0.117482), (3, 0.034548), (4, 0.009501)])
def test_lloyd_max_constants(bits, value):
    """Max (1960) gives 0.3634, 0.1175, 0.03454, 0.009497 with the arithmetic of his day; the fixed point is as above."""
    levels, error = lloyd_max(bits)
    assert len(levels) == 2**bits
    assert error == pytest.approx(value, abs=1e-6)
    x = gaussian(200_000, 1)
    nearest = (x - torch.tensor(levels)).abs().amin(1)
    assert nearest.square().mean().item() == pytest.approx(value, rel=0.02)


def test_lattice_beats_scalar_at_two_bits_but_not_at_four():
    """The gain over Lloyd-Max is 22 % at 2 bits; at 4 bits the residual codebook is only as good as a scalar one."""
    assert mse(get("e8p"), gaussian(160_000, 8)) < 0.8 * lloyd_max(2)[1]
    assert mse(get("e8p_rvq3"), gaussian(160_000, 8)) < 0.9 * lloyd_max(3)[1]
    assert mse(get("e8p_rvq4"), gaussian(160_000, 8)) == pytest.approx(lloyd_max(4)[1], rel=0.03)
    assert codebooks.get("e8p").scale == 1.03


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "blocks"), [(1, 1), (1, 3), (3, 5), (16, 8)])
def test_decoding_packed_rows_is_unpacking_and_decoding(name, m, blocks):
    codebook = get(name)
    codes = torch.randint(
        0, 2 ** (codebook.bits * codebook.block), (m + 1, blocks), generator=torch.Generator().manual_seed(m)
    )
    packed = codebook.pack(codes)
    expected = codebook.decode(codes).flatten(1)
    assert torch.allclose(codebook.decode_packed(packed, blocks), expected, atol=1e-6)
    assert torch.allclose(codebook.decode_packed(packed[1:], blocks), expected[1:], atol=1e-6)  # any offset
    if codebook.residual_scale is None:
        assert torch.equal(codebook.decode_packed(packed, blocks), expected)
