"""The file that a user hands over, a CSV of a series, plain or compressed: damaged in any form it is one sentence."""

import gzip

import numpy as np
import pandas as pd
import pytest

from common.errors import UserError
from common.experiment import launch
from common.run import Run
from common.settings import compose
from papers.loss_shaping import data
from tests import damaged


def table(**changes):
    rng = np.random.default_rng(0)
    dates = pd.date_range("2024-01-01", periods=200, freq="h")
    return pd.DataFrame({"date": dates, "a": rng.normal(size=200), "b": rng.normal(size=200)} | changes)


def save(**changes):
    return lambda path: table(**changes).to_csv(path, index=False)


def text(content):
    return lambda path: path.write_text(content)


def read(path):
    cfg = compose("loss_shaping", "train", [f"data.path={path}"])
    data.load(cfg.data, Run(path.parent, paper="loss_shaping"), context=12, label=4, horizon=6)


ENDLESS = np.r_[np.arange(199.0), np.inf]
CSV = damaged.Input("mine.csv", save(), read, {
    "not_finite": save(a=np.full(200, np.nan)),
    "infinite": save(a=ENDLESS),
    "wrong_shape": text("date,a\n2024-01-01,1\n2024-01-02,2,3,4\n2024-01-03,5\n"),
    "header_alone": text("date,a\n"),
    "no_header": lambda path: table().to_csv(path, index=False, header=False),
    "two_rows": lambda path: table().head(2).to_csv(path, index=False),
    "wrong_type": save(a=["many"] * 200),
    "true_and_false": save(a=[True, False] * 100),
    "dates_are_numbers": save(date=np.arange(200)),
    "dates_beyond": save(date=["12024-01-01"] * 200),
    "quotes_left_open": text('date,a\n"2024-01-01,1\n2024-01-02,2\n'),
}, {"truncated": "a text that ends early is a shorter table"})  # fmt: skip


def compressed(write):
    def writer(path):
        plain = path.with_name("plain.csv")
        write(plain)
        path.write_bytes(gzip.compress(plain.read_bytes()))

    return writer


GZ = damaged.Input("mine.csv.gz", compressed(save()), read, {
    "not_finite": compressed(save(a=np.full(200, np.nan))),
    "wrong_shape": compressed(text("date,a\n2024-01-01,1\n2024-01-02,2,3,4\n")),
    "wrong_type": compressed(save(a=["many"] * 200)),
    "not_compressed": lambda path: path.write_text(table().to_csv(index=False)),
    "wrong_sum": lambda path: path.write_bytes(gzip.compress(b"date,a\n")[:-8] + bytes(8)),
})  # fmt: skip


@damaged.every_form([CSV, GZ])
def test_a_damaged_file_is_one_sentence(tmp_path, given, form):
    damaged.refused(tmp_path, given, form)


@pytest.mark.parametrize("given", [CSV, GZ], ids=lambda given: given.name)
def test_a_good_file_is_read(tmp_path, given):
    damaged.accepted(tmp_path, given)


def test_the_command_says_it_before_it_trains(tmp_path):
    (tmp_path / "mine.csv").write_bytes(b"")
    with pytest.raises(UserError, match=r"mine\.csv is not a CSV"):
        launch("loss_shaping", [f"data.path={tmp_path / 'mine.csv'}", "threads=1"])
