"""Windows, splits and scales; files that cannot be used; published facts of the real files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from common.errors import UserError
from common.run import Run
from papers.loss_shaping import data, metrics
from papers.loss_shaping.fitting import evaluate
from papers.loss_shaping.forecasters import Shape, build_forecaster


def config(**more):
    base = {"name": "synthetic", "path": None, "date": "date", "drop": [], "missing": "error", "irregular": "error", "split": "ratio",
            "freq": "h", "stride": {"train": 1, "val": 1, "test": 1}, "rows": 300, "channels": 2}  # fmt: skip
    return OmegaConf.create(base | more)


def load(tmp_path, context=24, label=8, horizon=12, **more):
    return data.load(config(**more), Run(tmp_path, paper="loss_shaping"), context=context, label=label, horizon=horizon)


@pytest.fixture
def csv(tmp_path):
    """A writer of small CSV files: csv(column=values, ...) -> path."""

    def write(n=120, **columns):
        rng = np.random.default_rng(0)
        table = {
            "date": pd.date_range("2024-01-01", periods=n, freq="h"),
            "a": rng.normal(size=n),
            "b": rng.normal(size=n),
        } | columns
        path = tmp_path / "my.csv"
        pd.DataFrame(table).to_csv(path, index=False)
        return str(path)

    return write


def test_segments_are_seven_one_two_and_begin_a_context_early(tmp_path):
    found = load(tmp_path, rows=307).segments  # 214, what is left (32), 61
    counts = {name: len(windows) for name, windows in found.items()}
    assert counts == {"train": 214 - 36 + 1, "val": 32 + 24 - 36 + 1, "test": 61 + 24 - 36 + 1}
    assert int(found["test"].starts[0]) + 24 == 307 - int(0.2 * 307)  # the first target


def test_every_target_row_of_the_test_segment_is_used(tmp_path):
    windows = load(tmp_path).segments["test"]
    rows = {int(s) + 24 + i for s in windows.starts for i in range(12)}
    assert rows == set(range(240, 300))


def test_scales_come_from_training_rows_alone(tmp_path):
    series, _ = data.synthetic(300, 2, np.random.default_rng(0))
    standard, mean, std = data.standardise(series, 210)
    assert standard[:210].mean(0) == pytest.approx([0, 0], abs=1e-12)
    assert standard[:210].std(0) == pytest.approx([1, 1])
    series.values[210:] += 100.0
    again = data.standardise(series, 210)
    assert (again[1] == mean).all()
    assert (again[2] == std).all()


def test_a_loaded_series_is_standardised_by_its_training_rows_and_no_others(tmp_path, csv):
    """A jump after the training rows must not reach the scale."""
    jump = np.r_[np.tile([0.0, 2.0], 42), np.full(36, 100.0)]  # 84 training rows of 120
    found = load(tmp_path, context=6, horizon=6, path=csv(a=jump))
    assert (found.mean[0], found.std[0]) == (1.0, 1.0)
    assert found.segments["test"].values[:84, 0].abs().max() == 1.0
    assert found.segments["test"].values[84:, 0].unique().tolist() == [99.0]


def test_a_batch_is_context_target_and_marks_of_its_rows(tmp_path):
    windows = load(tmp_path).segments["train"]
    batch = windows.batch(torch.tensor([0, 5]))
    assert {key: tuple(value.shape) for key, value in batch.items()} == {
        "x": (2, 24, 2), "y": (2, 12, 2), "x_mark": (2, 24, 4), "y_mark": (2, 20, 4)}  # fmt: skip
    assert torch.equal(batch["x"][1], windows.values[5:29])
    assert torch.equal(batch["y"][1], windows.values[29:41])
    assert torch.equal(batch["y_mark"][1], windows.marks[21:41])


def test_evaluation_counts_each_window_once_whatever_the_batch(tmp_path):
    windows = load(tmp_path).segments["test"]
    forecaster = build_forecaster("repeat", Shape(2, 4, 24, 8, 12))
    whole, odd = (evaluate(forecaster, windows, size) for size in (1000, 7))
    assert odd["mse"] == pytest.approx(whole["mse"])
    x, y = windows.values[windows.starts[:, None] + 23], None
    y = torch.stack([windows.values[windows.starts + 24 + i] for i in range(12)], 1)
    assert whole["mse"] == pytest.approx((x - y).square().mean(0).numpy(), rel=1e-5)


def test_evaluation_keeps_the_order_of_time(tmp_path):
    """Block bootstrap takes neighbours for neighbours."""
    windows = load(tmp_path).segments["test"]
    each = evaluate(build_forecaster("repeat", Shape(2, 4, 24, 8, 12)), windows, 7)["windows"]
    first = int(windows.starts[5]) + 24
    error = (windows.values[first : first + 12] - windows.values[first - 1]).square().mean(1)
    assert each[5] == pytest.approx(error.numpy(), rel=1e-5)


def test_marks_lie_within_half_and_have_the_frequency_s_width():
    dates = pd.date_range("2023-01-01", periods=20000, freq="h")
    for freq, width in {"t": 5, "h": 4, "d": 3, "w": 2}.items():
        marks = data.time_marks(dates, freq)
        assert marks.shape == (20000, width)
        assert np.abs(marks).max() <= 0.5
    assert data.time_marks(dates[:24], "h")[:, 0] == pytest.approx(np.arange(24) / 23 - 0.5)


def test_the_best_error_on_the_synthetic_series_grows_as_the_law_says():
    """Least squares on long contexts stays above the floor of one who knows the state, and follows it."""
    series, loading = data.synthetic(6000, 3, np.random.default_rng(1))
    floor = data.synthetic_floor(loading, series.values.std(0), 48)
    assert (np.diff(floor) > 0).all()
    r = 0.04 * (1 - 0.98**2) / (1 - 0.98**2)
    assert floor[0] == pytest.approx(((r * (loading**2).sum(1) + 0.01) / series.values.std(0) ** 2).mean())
    repeat = np.mean((series.values[48:] - series.values[:-48]) ** 2 / series.values.std(0) ** 2)
    assert repeat > floor[47]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [np.nan, *range(119)]}, {}, r"1 missing values, the first in column 'a', row 1.*data\.missing=ffill"),
        ({"a": [np.nan, *range(119)]}, {"missing": "ffill"}, "nothing before it"),
        ({"a": ["x"] * 120}, {}, r"'a'.*not numeric.*data\.drop"),
        ({"a": [1.0] * 120}, {}, r"'a'.*constant over the 84 training rows.*data\.drop=\[a\]"),
        ({"a": [0.1] * 120}, {}, r"'a'.*constant"),
        ({"date": ["soon"] * 120}, {}, "row 1: 'soon' is not a date"),
        ({"date": pd.date_range("2024-01-01", periods=120, freq="h")[::-1]}, {}, "not in order of time: row 2"),
        ({"date": [*pd.date_range("2024-01-01", periods=119, freq="h"), pd.Timestamp("2025-01-01")]}, {}, "not evenly spaced: row 120"),
        ({}, {"date": "when"}, "no column 'when'.*data.date=, of date, a, b"),
        ({"date": np.arange(1900, 2020)}, {}, "holds numbers, not dates"),
        ({"date": pd.date_range("2024-01-01", periods=120).strftime("%d/%m/%Y")}, {}, "may have its day first or its month; write dates as 2024-01-13"),
        ({"date": pd.date_range("2024-01-01", periods=120).strftime("%m-%d-%y")}, {}, "day first or its month"),
        ({}, {"drop": ["c"]}, "'c'"),
        ({}, {"drop": ["a", "b"]}, "no value columns"),
        ({}, {"context": 60, "horizon": 60}, "a window takes 60 \\+ 60"),
        ({}, {"split": "ett"}, "20 months"),
        ({}, {"split": "half"}, "use ratio"),
        ({}, {"freq": "y"}, "unknown data.freq 'y'"),
        ({"a": [np.nan] * 84 + [1.0, 2.0] * 18}, {"missing": "mask"}, "'a' of my has no value in the 84 training rows"),
        ({"a": [1.0, 2.0] * 42 + [np.nan] * 36, "b": [1.0, 2.0] * 42 + [np.nan] * 36}, {"missing": "mask"}, "has no value at some step"),
        ({"date": [f"{d}+01:00" if i else str(d) for i, d in enumerate(pd.date_range("2024-01-01", periods=120, freq="h"))]}, {}, "row 1.*no time zone offset"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_answered_with_the_way_out(tmp_path, csv, columns, options, message):
    with pytest.raises(UserError, match=message):
        load(tmp_path, path=csv(**columns), **options)


def test_gaps_are_carried_on_and_uneven_dates_kept_where_asked(tmp_path, csv):
    dates = [*pd.date_range("2024-01-01", periods=119, freq="h"), pd.Timestamp("2025-01-01")]
    found = load(tmp_path, path=csv(date=dates, a=[1.0, np.nan, *range(118)]), missing="ffill", irregular="keep")
    assert found.channels == 2


@pytest.mark.parametrize("content", ["", "\n", "date\n2024-01-01\n2024-01-02\n2024-01-03\n"])
def test_a_file_that_is_no_table_is_one_sentence(tmp_path, content):
    path = tmp_path / "no.csv"
    path.write_text(content)
    with pytest.raises(UserError):
        load(tmp_path, path=str(path))


def test_dates_with_the_year_first_need_no_dashes(tmp_path, csv):
    dates = [f"{d.year}/{d.month}/{d.day} 0:00" for d in pd.date_range("1990-01-01", periods=120)]
    assert load(tmp_path, path=csv(date=dates)).channels == 2


def test_two_columns_of_one_name_are_seen(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("date,a,a\n2024-01-01,1,2\n2024-01-02,2,3\n2024-01-03,3,5\n")
    with pytest.raises(UserError, match="two columns 'a'"):
        load(tmp_path, path=str(path))


def test_columns_apart_by_semicolons_are_seen_as_such(tmp_path):
    path = tmp_path / "no.csv"
    path.write_text("date;a\n2024-01-01;1,5\n2024-01-02;2,5\n")
    with pytest.raises(UserError, match="apart by ';'"):
        load(tmp_path, path=str(path))


def test_a_file_without_a_known_checksum_is_told_apart(tmp_path, csv, monkeypatch):
    from common.data import registry

    path = csv()
    monkeypatch.setattr(registry, "locate", lambda name, run: Path(path))
    run = Run(tmp_path, paper="loss_shaping")
    data.load(config(name="weather"), run, context=24, label=8, horizon=12)
    assert "no checksum" in run.notes[0]


# ---- time zones, frequencies, gaps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "UTC", "Asia/Kolkata"])
def test_offsets_that_change_with_summer_time_are_read_by_utc_and_the_clock(tmp_path, csv, zone):
    dates = pd.date_range("2024-02-01", periods=1500, freq="h", tz=zone)  # over a change of clocks where there is one
    series = data.read_csv(Path(csv(n=1500, date=dates)), config())
    assert (np.diff(series.dates.to_numpy()) == np.timedelta64(1, "h")).all()
    assert series.dates[0] == dates[0].tz_convert("UTC").tz_localize(None)
    assert (series.clock.hour == dates.hour).all()
    assert (series.clock.day_of_year == dates.day_of_year).all()
    assert load(tmp_path, path=csv(n=1500, date=dates)).mark_width == 4


@pytest.mark.parametrize(
    "form", ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S+0000", "%Y-%m-%d %H:%M+00:00", "%Y-%m-%d %H:%M:%S UTC"]
)
def test_offsets_are_known_in_their_spellings(csv, form):
    dates = pd.date_range("2024-01-01", periods=120, freq="h")
    series = data.read_csv(Path(csv(date=dates.strftime(form))), config())
    assert (series.dates == dates).all()
    assert (series.clock == dates).all()


def test_a_day_is_no_offset(csv):
    """2024-01-13 ends as an offset does, -13 of nothing."""
    dates = pd.date_range("2024-01-01", periods=120, freq="D")
    assert (data.read_csv(Path(csv(date=dates.strftime("%Y-%m-%d"))), config()).dates == dates).all()


@pytest.mark.parametrize(
    ("step", "freq", "width"),
    [("s", "s", 6), ("30s", "s", 6), ("15min", "t", 5), ("min", "t", 5), ("h", "h", 4), ("6h", "h", 4), ("D", "d", 3), ("B", "b", 3),
     ("W", "w", 2), ("2W", "w", 2), ("MS", "m", 1), ("ME", "m", 1), ("QS", "m", 1)],
)  # fmt: skip
def test_calendar_features_follow_the_step_of_the_file(tmp_path, csv, step, freq, width):
    dates = pd.date_range("2001-01-01", periods=120, freq=step)
    assert data.frequency(dates) == freq
    assert load(tmp_path, context=6, horizon=3, path=csv(date=dates), freq="auto").mark_width == width


def test_business_days_with_holidays_are_kept_as_rows_where_asked(tmp_path, csv):
    dates = pd.date_range("2024-01-01", periods=130, freq="B").delete([3, 40, 41, 77, 80, 99, 100, 110, 115, 118])
    found = load(tmp_path, context=6, horizon=3, path=csv(date=dates), freq="auto", irregular="keep")
    assert found.mark_width == 3


def test_the_benchmark_s_files_keep_the_paper_s_hours(tmp_path):
    assert load(tmp_path, freq="auto").mark_width == 4


def gapped(csv, where, n=120):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, n))
    a[where] = np.nan
    return csv(n=n, a=a, b=b)


def test_gaps_are_hidden_from_inputs_and_are_no_targets(tmp_path, csv):
    where = [0, 30, 31, 32, 90, 100]
    found = load(tmp_path, context=12, horizon=6, path=gapped(csv, where), missing="mask")
    train = found.segments["train"]
    seen = train.seen[:, 0].numpy()
    assert np.flatnonzero(~seen).tolist() == where
    assert train.values[0, 0] == 0.0  # nothing before it: the mean
    assert train.values[30:33, 0].tolist() == [train.values[29, 0]] * 3
    kept = np.setdiff1d(np.arange(84), where)  # the scale is that of what was seen
    raw = pd.read_csv(tmp_path / "my.csv")["a"].to_numpy()
    assert (found.mean[0], found.std[0]) == pytest.approx((raw[kept].mean(), raw[kept].std()))
    batch = train.batch(torch.tensor([15]))  # targets are rows 27 to 32
    assert batch["seen"][0, :, 0].tolist() == [True] * 3 + [False] * 3
    assert batch["seen"][0, :, 1].all()


def test_what_a_gap_would_have_been_moves_no_loss_no_error_and_no_mean(tmp_path, csv):
    """Two files that differ only in what is hidden: the same losses, gradients, errors."""
    from papers.loss_shaping.shaping import WindowLosses

    found = load(tmp_path, context=12, horizon=6, path=gapped(csv, [40, 41, 70, 105]), missing="mask")
    torch.manual_seed(0)
    forecaster = build_forecaster("linear", Shape(2, 4, 12, 8, 6))
    losses = WindowLosses(forecaster)
    windows = found.segments["train"]
    batch = windows.batch(torch.arange(len(windows)))
    other = batch | {"y": torch.where(batch["seen"], batch["y"], 99.0)}
    assert torch.equal(losses(batch), losses(other))
    error = (forecaster(batch["x"]) - batch["y"]).square()
    by_hand = torch.stack([error[:, i][batch["seen"][:, i]].mean() for i in range(6)])
    torch.testing.assert_close(losses(batch), by_hand)
    grid = WindowLosses(forecaster, cells="grid")(batch).reshape(6, 2)
    torch.testing.assert_close(grid[2, 0], error[:, 2, 0][batch["seen"][:, 2, 0]].mean())
    measured = evaluate(forecaster, windows, 7)
    cells = torch.stack(
        [torch.stack([error[:, i, c][batch["seen"][:, i, c]].mean() for c in range(2)]) for i in range(6)]
    )
    assert measured["mse"] == pytest.approx(cells.detach().numpy(), rel=1e-5)


def test_a_window_of_which_nothing_was_seen_is_left_out(tmp_path, csv):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 120))
    a[40:60] = b[40:60] = np.nan
    starts = load(tmp_path, context=12, horizon=6, path=csv(a=a, b=b), missing="mask").segments["train"].starts
    targets = set(starts.tolist())
    assert 27 in targets  # targets 39 to 44: one was seen
    assert not targets & set(range(28, 43))
    assert 43 in targets


# ---- the real files: counts, and the repeat-last forecaster on every test window ------------------------------------


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "split", "context", "horizon", "counts"),
    [
        ("etth1", "ratio", 96, 96, (12003, 1647, 3389)),
        ("etth1", "ratio", 96, 720, (11379, 1023, 2765)),
        ("etth1", "ett", 96, 96, (8449, 2785, 2785)),
        ("etth1", "ett", 96, 720, (7825, 2161, 2161)),
        ("ettm1", "ett", 96, 96, (34369, 11425, 11425)),
        ("exchange_rate", "ratio", 96, 192, (5024, 569, 1326)),
        ("exchange_rate", "ratio", 96, 720, (4496, 41, 798)),
        ("national_illness", "ratio", 36, 24, (617, 74, 170)),
        ("national_illness", "ratio", 36, 60, (581, 38, 134)),
    ],
)
def test_real_files_have_their_published_window_counts(tmp_path, name, split, context, horizon, counts):
    found = load(tmp_path, name=name, split=split, context=context, horizon=horizon)
    assert tuple(len(found.segments[s]) for s in data.SEGMENTS) == counts


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "split", "context", "horizon", "mse", "std"),
    [
        ("exchange_rate", "ratio", 96, 96, 0.0811, 0.0461),
        ("exchange_rate", "ratio", 96, 720, 0.8101, 0.5089),
        ("etth1", "ett", 96, 96, 1.2944, None),
        ("etth1", "ratio", 96, 96, 1.5988, 0.6066),
        ("ettm1", "ett", 96, 96, 1.2139, None),
        ("exchange_rate", "ratio", 96, 336, 0.3057, 0.1817),
        ("national_illness", "ratio", 36, 24, 6.2133, None),
        ("national_illness", "ratio", 36, 60, 6.8849, None),
    ],
)
def test_repeating_the_last_value_scores_as_it_is_known_to(tmp_path, name, split, context, horizon, mse, std):
    found = load(tmp_path, name=name, split=split, context=context, label=18, horizon=horizon)
    forecaster = build_forecaster("repeat", Shape(found.channels, 4, context, 18, horizon))
    profile = evaluate(forecaster, found.segments["test"], 512)["mse"].mean(1)
    assert profile.mean() == pytest.approx(mse, abs=6e-5)
    if std is not None:
        assert metrics.window_std(profile) == pytest.approx(std, abs=6e-5)
    if (name, horizon) == ("exchange_rate", 96):
        assert profile[0] == pytest.approx(0.0038, abs=6e-5)
