"""The one file that a user hands over, an .npz of prompts: damaged in any form it is one sentence."""

import numpy as np
import pytest

from common.errors import UserError
from common.experiment import launch
from common.settings import compose
from papers.softmax_icl.real_prompts import own_prompts
from tests import damaged

GOOD = {"x": np.eye(8)[None].repeat(2, 0), "y": np.ones((2, 8)), "x_q": np.eye(8)[:2], "y_q": np.ones(2)}


def save(**changes):
    return lambda path: np.savez(path.open("wb"), **{k: v for k, v in (GOOD | changes).items() if v is not None})


def read(path):
    own_prompts(compose("softmax_icl", "train", [f"tokens.prompts={path}"]).tokens)


PROMPTS = damaged.Input("mine.npz", save(), read, {
    "not_finite": save(x=np.full((2, 8, 8), np.nan)),
    "infinite": save(y_q=np.array([1.0, np.inf])),
    "wrong_shape": save(y=np.ones((2, 7))),
    "one_prompt_without_batch": save(x=np.eye(8)),
    "no_prompts": save(x=np.ones((0, 8, 8)), y=np.ones((0, 8)), x_q=np.ones((0, 8)), y_q=np.ones(0)),
    "other_dimension": save(x=np.ones((2, 8, 3)), x_q=np.ones((2, 3))),
    "lacks_an_array": save(y_q=None),
    "wrong_type": save(y=np.full((2, 8), "a")),
    "complex": save(x_q=np.eye(8)[:2] * 1j),
    "objects": lambda path: np.savez(path.open("wb"), allow_pickle=True, **GOOD | {"y": np.array([[object()] * 8] * 2)}),
    "fractional_features": save(feat=np.full((2, 8), 0.5)),
    "array_alone": lambda path: np.save(path.open("wb"), GOOD["x"]),
})  # fmt: skip


@damaged.every_form([PROMPTS])
def test_a_damaged_file_is_one_sentence(tmp_path, given, form):
    damaged.refused(tmp_path, given, form)


def test_a_good_file_is_read(tmp_path):
    damaged.accepted(tmp_path, PROMPTS)


def test_the_command_says_it_before_it_trains(tmp_path):
    (tmp_path / "mine.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"mine\.npz cannot be read"):
        launch("softmax_icl", ["+exp=smoke", "threads=1", "parts=[tokens]", f"tokens.prompts={tmp_path / 'mine.npz'}"])
