"""Series and windows: the benchmark's CSV layout, its splits, standardisation on training rows, and a synthetic stand-in.

A window is T_c rows of context followed by T_p rows to predict, stride 1 unless asked otherwise. Every window of a
segment is used: nothing is shuffled away or dropped at evaluation. Where gaps are masked, a model sees the last value before
them, and what is missing is no target: it counts in no loss, no error, no mean.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.errors import UserError, choose, shorten

if TYPE_CHECKING:
    import pandas as pd

    from common.run import Run

SEGMENTS = ("train", "val", "test")
ETT_MONTH = 30 * 24  # hours
DAY_OR_MONTH_FIRST = r"\s*\d{1,2}[/.-]\d{1,2}[/.-]\d"  # 03/01/2024 is read in two ways, and pandas chooses row by row


@dataclass
class Series:
    """A table of values as it was read. values: (n, C) float64, in the units of the file; NaN in gaps that are to be masked.

    dates: in order of time, of UTC where the file has offsets; clock: what the clock on the wall showed, for calendar features.
    """

    name: str
    values: NDArray[np.float64]
    dates: pd.DatetimeIndex
    columns: list[str]
    notes: list[str] = field(default_factory=list)
    clock: pd.DatetimeIndex | None = None

    @property
    def rows_per_hour(self) -> float:
        return 3600.0 / (self.dates[1] - self.dates[0]).total_seconds()


@dataclass
class Windows:
    """The windows of one segment. values: (n, C) float32 standardised; marks: (n, d_m); starts: (N,) first context rows.

    seen: (n, C) bool, False in masked gaps; None where there are none.
    """

    values: Tensor
    marks: Tensor
    starts: Tensor
    context: int
    label: int
    horizon: int
    seen: Tensor | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, index: Tensor) -> dict[str, Tensor]:
        """x (B, T_c, C), y (B, T_p, C), x_mark (B, T_c, d_m), y_mark (B, T_l + T_p, d_m) of the windows `index` (B,).

        With gaps also seen (B, T_p, C), which of the targets are there.
        """
        rows = self.starts[index, None] + torch.arange(self.context + self.horizon)  # (B, T_c + T_p)
        values, marks = self.values[rows], self.marks[rows]
        batch = {
            "x": values[:, : self.context],
            "y": values[:, self.context :],
            "x_mark": marks[:, : self.context],
            "y_mark": marks[:, self.context - self.label :],
        }
        return batch if self.seen is None else batch | {"seen": self.seen[rows[:, self.context :]]}

    def batches(self, size: int) -> Iterator[dict[str, Tensor]]:
        """All windows in order, the last batch as short as it comes."""
        for index in torch.arange(len(self)).split(size):
            yield self.batch(index)


@dataclass
class Dataset:
    """The three segments of a series, standardised by the training rows' mean and deviation (C,)."""

    name: str
    columns: list[str]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    segments: dict[str, Windows]
    sha: str

    @property
    def channels(self) -> int:
        return len(self.columns)

    @property
    def mark_width(self) -> int:
        return self.segments["train"].marks.shape[1]


# ---- from a config to a data set -------------------------------------------------------------------------------------


def load(cfg: Any, run: Run, *, context: int, label: int, horizon: int) -> Dataset:
    """The data set that `cfg` (the config's `data`) names. Raises UserError for what a user can fix."""
    from common.files import sha256_of_arrays

    series = _series(cfg, run)
    for note in series.notes:
        run.note(note)
    borders = split(series, cfg.split, context)
    for name, (first, end) in borders.items():
        if end - first < context + horizon:
            raise UserError(
                f"the {name} segment of {series.name} has {end - first} rows, and a window takes {context} + {horizon}: "
                f"give a longer file, or lower context and horizon"
            )
    standard, mean, std = standardise(series, borders["train"][1])
    clock = series.dates if series.clock is None else series.clock
    freq = cfg.freq
    if freq == "auto":
        freq = frequency(series.dates) if cfg.path is not None else "h"  # the paper's, for all but 15-minute data
    if cfg.path is not None and cfg.freq == "auto":
        run.note(f"{series.name}: calendar features of data.freq={freq}, by the step of its dates")
    marks = torch.as_tensor(time_marks(clock, freq), dtype=torch.float32)
    gaps = np.isnan(standard)
    seen = torch.as_tensor(~gaps) if gaps.any() else None
    values = torch.as_tensor(carried(standard) if gaps.any() else standard, dtype=torch.float32)
    segments = {}
    for name, (first, end) in borders.items():
        starts = torch.arange(first, end - context - horizon + 1, int(cfg.stride[name]))
        if seen is not None:
            there = seen[starts[:, None] + context + torch.arange(horizon)].any(2)  # (N, T_p)
            starts = starts[there.any(1)]
            if not len(starts) or not there.any(0).all():
                raise UserError(f"the {name} segment of {series.name} has no value at some step of all its windows: cut it, or fill its gaps")  # fmt: skip
        segments[name] = Windows(values, marks, starts, context, min(label, context), horizon, seen)
    return Dataset(series.name, series.columns, mean, std, segments, sha256_of_arrays(series.values))


def _series(cfg: Any, run: Run) -> Series:
    if cfg.path is not None:
        from common.data.registry import own_file

        own = Path(cfg.path).expanduser()
        if own.is_dir():
            raise UserError(f"data.path: {cfg.path} is a folder: name the CSV in it")
        if own.exists() and not own.is_file():  # a fifo would be waited for
            raise UserError(f"data.path: {cfg.path} is no plain file: give a CSV on disk")
        return read_csv(own_file(cfg.path, "data.path", run), cfg)
    if cfg.name == "synthetic":
        series, _ = synthetic(cfg.rows, cfg.channels, run.rng("synthetic").numpy)
        run.use_data("synthetic", "synthetic", "papers.loss_shaping.data.synthetic", None)
        return series
    from common.data.registry import entry, locate
    from common.files import sha256_of

    path = locate(cfg.name, run=run)
    if not entry(cfg.name).files[0].sha256:  # several variants of the file circulate: say which this was
        sha = sha256_of(path)
        run.use_data(cfg.name, "real", path, sha)
        run.note(
            f"{cfg.name}: no checksum to hold {path} against is known; yours is {sha[:16]}... (result.json has all of it)"
        )
    return read_csv(path, cfg, name=cfg.name)


def read_csv(path: Path, cfg: Any, name: str | None = None) -> Series:
    """A CSV (or .csv.gz) with a date column and value columns. cfg: date, drop, missing (error | mask | ffill), irregular (error | keep).

    Raises UserError naming the column, the row and the way out, for gaps, text among the numbers and dates out of order.
    """
    import pandas as pd

    read = partial(pd.read_csv, path, compression="gzip" if path.suffix == ".gz" else None, skipinitialspace=True)
    try:
        table, names = read(), read(header=None, nrows=1, dtype=str).iloc[0].dropna()
    except (ValueError, IndexError, EOFError, gzip.BadGzipFile, zlib.error) as error:  # pandas' own are ValueErrors
        what = shorten(str(error)) or type(error).__name__
        raise UserError(f"{path} is not a CSV ({what}): give a table with a header, in UTF-8") from None
    if any("\0" in str(column) for column in table.columns):
        raise UserError(f"{path} is not a CSV (its header holds zero bytes): give a table with a header, in UTF-8")
    if len(table.columns) == 1 and (mark := next((m for m in ";\t|" if m in table.columns[0]), None)):
        raise UserError(f"{path} has its columns apart by {mark!r}: write it with commas (and points in numbers)")
    if names.duplicated().any():  # pandas would call the second a.1
        raise UserError(f"{path} has two columns {names[names.duplicated()].iloc[0]!r}: give each a name of its own")
    if cfg.date not in table.columns:
        raise UserError(
            f"{path} has no column {cfg.date!r}: name the one with the dates by data.date=, of {', '.join(map(str, table.columns[:9]))}"
        )
    dates, clock = _dates(table.pop(cfg.date), path, cfg)
    if absent := [column for column in cfg.drop if column not in table.columns]:
        raise UserError(f"data.drop names {absent[0]!r}, which is not among {', '.join(map(str, table.columns))}")
    table = table.drop(columns=list(cfg.drop))
    if table.empty:
        raise UserError(f"{path} has no value columns besides {cfg.date!r}: give at least one")
    for column in table.columns:
        if not pd.api.types.is_numeric_dtype(table[column]) or pd.api.types.is_bool_dtype(table[column]):
            raise UserError(f"column {column!r} of {path} is not numeric: leave it out with data.drop=[{column}]")
    notes = []
    values = table.to_numpy(dtype=np.float64)
    gaps = ~np.isfinite(values)
    if gaps.any():
        row, column = np.argwhere(gaps)[0]
        where = f"{int(gaps.sum())} missing values, the first in column {table.columns[column]!r}, row {row + 1}"
        if cfg.missing == "error":
            raise UserError(
                f"{path} has {where}: hide gaps from inputs and targets with data.missing=mask, or carry values on with data.missing=ffill"
            )
        table = table.mask(gaps)
        if cfg.missing == "mask":
            notes.append(f"{path.name}: {int(gaps.sum())} missing values are hidden: they are no targets, and inputs show the value before")  # fmt: skip
            values = table.to_numpy(dtype=np.float64)
        else:
            values = carried(table.to_numpy(dtype=np.float64), first=np.nan)
            if not np.isfinite(values).all():
                raise UserError(f"{path} has {where}, with nothing before it to carry on: cut the first rows")
            notes.append(f"{path.name}: {int(gaps.sum())} missing values took the value before them, as targets too")
    if cfg.irregular == "keep" and not _regular(dates):
        notes.append(f"{path.name}: dates are not evenly spaced; windows count rows, not hours")
    return Series(name or path.stem, values, dates, [str(column) for column in table.columns], notes, clock)


def carried(values: NDArray[np.float64], first: float = 0.0) -> NDArray[np.float64]:
    """values (n, C) with each NaN replaced by the last number above it; `first` where there is none (0: the mean of z-scores)."""
    there = ~np.isnan(values)
    last = np.maximum.accumulate(np.where(there, np.arange(len(values))[:, None], -1), axis=0)  # row of the last number
    filled = np.take_along_axis(values, np.maximum(last, 0), axis=0)
    return np.where(last < 0, first, filled)


OFFSET = r"\s*(?:Z|UTC|[+-]\d{2}:?\d{2}|(?<=\d\d:\d\d)[+-]\d{2}|(?<=\d\.\d{6})[+-]\d{2})\s*$"


def _dates(column: pd.Series, path: Path, cfg: Any) -> tuple[pd.DatetimeIndex, pd.DatetimeIndex]:
    """Dates in UTC where they carry offsets (which may change with summer time), and what the clock on the wall showed."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):  # would be read as nanoseconds since 1970
        raise UserError(f"column {cfg.date!r} of {path} holds numbers, not dates: write them as 2024-01-31 13:00:00")
    if (unclear := column.astype(str).str.match(DAY_OR_MONTH_FIRST)).any():
        row = int(unclear.to_numpy().argmax())
        raise UserError(f"{path}, row {row + 1}: {column.iloc[row]!r} may have its day first or its month; write dates as 2024-01-13")  # fmt: skip
    text = column.astype(str)
    offsets = text.str.contains(OFFSET, regex=True) & text.str.contains(":", regex=False)
    if offsets.any() and not offsets.all():
        row = int((~offsets).to_numpy().argmax())
        raise UserError(
            f"{path}, row {row + 1}: {column.iloc[row]!r} has no time zone offset, and other dates have: write all of one kind"
        )
    parsed = pd.to_datetime(column, errors="coerce", format="mixed", utc=bool(offsets.any()))
    if parsed.isna().any():
        row = int(parsed.isna().to_numpy().argmax())
        raise UserError(f"{path}, row {row + 1}: {column.iloc[row]!r} is not a date; write it as 2024-01-31 13:00:00")
    dates = clock = pd.DatetimeIndex(parsed)
    if offsets.any():
        dates = dates.tz_localize(None)
        clock = pd.DatetimeIndex(pd.to_datetime(text.str.replace(OFFSET, "", regex=True), format="mixed"))
    if len(dates) < 3:
        raise UserError(f"{path} has {len(dates)} rows: give a longer series")
    steps = dates[1:] - dates[:-1]
    if (steps <= pd.Timedelta(0)).any():
        row = int((steps <= pd.Timedelta(0)).argmax()) + 2
        raise UserError(
            f"{path} is not in order of time: row {row} ({dates[row - 1]}) does not come after the one before; "
            f"sort it and drop duplicates"
        )
    if cfg.irregular != "keep" and not _regular(dates):
        row = int((steps != steps[0]).argmax()) + 2
        raise UserError(f"{path} is not evenly spaced: row {row} comes {steps[row - 2]} after the one before, others {steps[0]}; "
                        f"resample it, or take rows as they are with data.irregular=keep")  # fmt: skip
    return dates, clock


def _regular(dates: pd.DatetimeIndex) -> bool:
    """Evenly spaced, or on one calendar beat (month ends, say)."""
    import pandas as pd

    steps = dates[1:] - dates[:-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pandas will return one day
        return bool((steps == steps[0]).all()) or pd.infer_freq(dates) is not None


def frequency(dates: pd.DatetimeIndex) -> str:
    """The calendar features that fit the step between dates: s, t (minutes), h, d, b (days without weekends), w, m."""
    step = float(np.median(np.diff(dates.to_numpy()) / np.timedelta64(1, "s")))
    if step >= 86_400 and step < 7 * 86_400:
        weekends = bool((dates.day_of_week >= 5).any())
        return "d" if weekends or len(dates) < 7 else "b"
    return next(
        name
        for name, below in (("s", 60), ("t", 3600), ("h", 86_400), ("w", 27 * 86_400), ("m", np.inf))
        if step < below
    )


# ---- splits and scales -----------------------------------------------------------------------------------------------


def split(series: Series, rule: str, context: int) -> dict[str, tuple[int, int]]:
    """(first row, end) of each segment. Validation and test begin T_c rows early, so that each of their rows is a target.

    ratio: 0.7 / rest / 0.2 of the rows, the paper's rule for every file. ett: months of 30 days, 12 / 4 / 4.
    """
    n = len(series.values)
    if rule == "ratio":
        train, test = int(n * 0.7), int(n * 0.2)
        ends = (train, n - test, n)
    elif rule == "ett":
        month = round(ETT_MONTH * series.rows_per_hour)
        ends = (12 * month, 16 * month, 20 * month)
        if n < ends[-1]:
            raise UserError(f"data.split=ett takes 20 months of 30 days, {ends[-1]} rows here, and {series.name} has {n}: use data.split=ratio")  # fmt: skip
    else:
        raise UserError(f"data.split is {rule!r}: use ratio (7:1:2) or ett (12/4/4 months)")
    return {
        "train": (0, ends[0]),
        "val": (max(0, ends[0] - context), ends[1]),
        "test": (max(0, ends[1] - context), ends[2]),
    }


def standardise(series: Series, train_rows: int) -> tuple[NDArray, NDArray, NDArray]:
    """Values as z-scores by the mean and population deviation of the first `train_rows` rows; returns them, mean, std. Gaps stay NaN."""
    train = series.values[:train_rows]
    if empty := [
        column for column, gone in zip(series.columns, np.atleast_1d(np.isnan(train).all(axis=0)), strict=True) if gone
    ]:
        raise UserError(f"column {empty[0]!r} of {series.name} has no value in the {train_rows} training rows: drop it by data.drop=[{empty[0]}]")  # fmt: skip
    whole = not np.isnan(train).any()
    mean, std = (train.mean(0), train.std(0)) if whole else (np.nanmean(train, 0), np.nanstd(train, 0))
    # not by the deviation: rounding in the mean gives a column of 0.1 one of 1e-17
    if flat := [
        column
        for column, spread in zip(series.columns, np.nanmax(train, axis=0) - np.nanmin(train, axis=0), strict=True)
        if not spread > 0
    ]:
        raise UserError(
            f"column {flat[0]!r} of {series.name} is constant over the {train_rows} training rows: "
            f"leave it out with data.drop=[{','.join(flat)}]"
        )
    return (series.values - mean) / std, mean, std


def time_marks(dates: pd.DatetimeIndex, freq: str) -> NDArray[np.float64]:
    """Calendar features scaled to [-1/2, 1/2]: (n, d_m). h: hour, weekday, day, day of year; t: minute before them, s: second; d, b: no hour.

    w has day of month and week of year, m the month.
    """
    features = {
        "second": lambda: dates.second / 59.0,
        "month": lambda: (dates.month - 1) / 11.0,
        "minute": lambda: dates.minute / 59.0,
        "hour": lambda: dates.hour / 23.0,
        "weekday": lambda: dates.day_of_week / 6.0,
        "day": lambda: (dates.day - 1) / 30.0,
        "yearday": lambda: (dates.day_of_year - 1) / 365.0,
        "week": lambda: (dates.isocalendar().week.to_numpy(dtype=float) - 1) / 52.0,
    }
    used = {
        "s": ("second", "minute", "hour", "weekday", "day", "yearday"),
        "t": ("minute", "hour", "weekday", "day", "yearday"),
        "h": ("hour", "weekday", "day", "yearday"),
        "d": ("weekday", "day", "yearday"),
        "b": ("weekday", "day", "yearday"),
        "w": ("day", "week"),
        "m": ("month",),
    }
    chosen = used[choose("data.freq", freq, used)]
    return np.stack([np.asarray(features[name](), dtype=float) - 0.5 for name in chosen], axis=1)


# ---- the synthetic stand-in ------------------------------------------------------------------------------------------

PERIODS = (24, 168)
MEMORY, SHOCK, NOISE = 0.98, 0.2, 0.1  # AR(1) coefficient, deviation of its innovations, of the independent noise


def synthetic(rows: int, channels: int, generator: np.random.Generator) -> tuple[Series, NDArray[np.float64]]:
    """Two seasons a channel, a rank-2 AR(1) that channels share, and noise. Returns the series and the loadings (C, 2).

    What is predictable fades as 0.98^i, so the least error of step i is known: see `synthetic_floor`.
    """
    import pandas as pd
    from scipy.signal import lfilter

    t = np.arange(rows)[:, None]
    seasons = sum(
        generator.uniform(0.3, 1.0, channels) * np.sin(2 * np.pi * t / P + generator.uniform(0, 2 * np.pi, channels))
        for P in PERIODS
    )
    loading = generator.normal(size=(channels, 2))
    start = generator.normal(size=2) * SHOCK / np.sqrt(1 - MEMORY**2)  # stationary from the first row
    shocks = generator.normal(size=(rows, 2)) * SHOCK
    state, _ = lfilter([1.0], [1.0, -MEMORY], shocks, axis=0, zi=(MEMORY * start)[None])
    values = seasons + state @ loading.T + NOISE * generator.normal(size=(rows, channels))
    dates = pd.date_range("2020-01-01", periods=rows, freq="h")
    return Series("synthetic", values, dates, [f"v{c + 1}" for c in range(channels)]), loading


def synthetic_floor(loading: NDArray, std: NDArray, horizon: int) -> NDArray[np.float64]:
    """The least mean squared error at step i = 1..T for one who knows the law and the state, standardised units: (T,)."""
    i = np.arange(1, horizon + 1)[:, None]
    spread = SHOCK**2 * (1 - MEMORY ** (2 * i)) / (1 - MEMORY**2)  # of each AR(1) after i steps
    return ((spread * (loading**2).sum(1) + NOISE**2) / std**2).mean(1)
