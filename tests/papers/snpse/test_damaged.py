"""The files that a user hands over, damaged in any form: one sentence."""

import numpy as np
import torch
from torch.distributions import Independent, Uniform

from common.errors import UserError
from papers.snpse import SNPSE, Posterior
from papers.snpse.own import read_observation, read_prior
from tests import damaged

BOX = Independent(Uniform(-torch.ones(2), torch.ones(2)), 1)


def save(array):
    return lambda path: np.save(path.open("wb"), array, allow_pickle=True)


def write(text):
    return lambda path: path.write_text(text)


def write_posterior(path):
    posterior = SNPSE(BOX, lambda theta, generator: theta, steps=2, width=8, n_hpr=10).infer(torch.zeros(2), 20)
    posterior.save(path)


def load(path):
    try:
        Posterior.load(path, BOX)
    except ValueError as error:
        raise UserError(str(error)) from None


def changed(**arrays):
    def writer(path):
        from safetensors.numpy import save_file

        save_file({"theta_mean": np.zeros(2, dtype=np.float32), **arrays}, path)

    return writer


INPUTS = [
    damaged.Input("x.npy", write=save(np.zeros(3)), read=read_observation, forms={
        "not_finite": save(np.array([0.0, np.nan])), "wrong_shape": save(np.zeros((2, 3))), "wrong_type": save(np.array(["a", "b"])),
        "pickled": save(np.array([{"a": 1}], dtype=object))},
        accepted={"flipped": "a stretch of an array overwritten by finite numbers cannot be seen"}),
    damaged.Input("prior.yaml", write=write("kind: uniform\nlow: [0, 0]\nhigh: [1, 1]\n"), read=read_prior, forms={
        "not_finite": write("kind: uniform\nlow: [0, .nan]\nhigh: [1, 1]\n"), "wrong_shape": write("kind: uniform\nlow: [0]\nhigh: [1, 1]\n"),
        "wrong_type": write("kind: uniform\nlow: [a, b]\nhigh: [1, 1]\n")}),
    damaged.Input("posterior.safetensors", write=write_posterior, read=load, forms={
        "not_finite": changed(x_mean=np.array([np.nan])), "wrong_shape": changed(), "wrong_type": changed(x_mean=np.zeros(2, dtype=np.int8))},
        accepted={"flipped": "a stretch of weights overwritten by finite numbers cannot be seen"}),
]  # fmt: skip


@damaged.every_form(INPUTS)
def test_a_damaged_file_is_one_sentence(tmp_path, given, form):
    damaged.refused(tmp_path, given, form)


def test_good_files_are_read(tmp_path):
    for given in INPUTS:
        damaged.accepted(tmp_path, given)
