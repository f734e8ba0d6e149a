"""Damaged files: whatever is wrong with a file that a user names, the answer is one sentence that names the file, and exit code 2.

A paper names its inputs and inherits the forms:

    from tests import damaged

    INPUTS = [
        damaged.Input("my.csv", write=write_csv, read=read_by_the_command, forms={"not_finite": write_csv_with_nan, ...}),
    ]

    @damaged.every_form(INPUTS)
    def test_a_damaged_file_is_one_sentence(tmp_path, given, form):
        damaged.refused(tmp_path, given, form)
"""

from __future__ import annotations

import gzip
import io
import os
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.errors import UserError, as_user_error

Writer = Callable[[Path], Any]
PROSE = "This is a letter and no data.\nDear reader, the numbers come with the next mail.\n"


@dataclass(frozen=True)
class Input:
    """A file that a verb is given.

    name: with its ending. write(path) makes a good one. read(path) does with it what the command does, and raises UserError
    (or what the command makes one of) where it cannot. forms: what can be wrong with the contents of this kind of file, each
    a writer: not_finite, wrong_shape, wrong_type and whatever else it has. accepted: form -> why it may be read all the same.
    """

    name: str
    write: Writer
    read: Writer
    forms: Mapping[str, Writer] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)


# ---- forms that every kind of file can take --------------------------------------------------------------------------


def _empty(path: Path, good: bytes) -> None:
    path.write_bytes(b"")


def _truncated(path: Path, good: bytes) -> None:
    path.write_bytes(good[: len(good) // 2])


def _random_bytes(path: Path, good: bytes) -> None:
    path.write_bytes(random.Random(0).randbytes(max(len(good), 64)))


def _flipped(path: Path, good: bytes) -> None:
    """A good file with a stretch in its middle overwritten, as a bad disk or a broken download leaves it."""
    middle = len(good) // 2
    path.write_bytes(good[:middle] + random.Random(1).randbytes(64) + good[middle + 64 :])


def _renamed(path: Path, good: bytes) -> None:
    """A good file of another kind under this name: an archive, or a compressed text where archives are what is read."""
    if path.suffix in (".zip", ".npz"):
        path.write_bytes(gzip.compress(PROSE.encode()))
        return
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("letter.txt", PROSE)
    path.write_bytes(archive.getvalue())


def _text(path: Path, good: bytes) -> None:
    path.write_text(PROSE)


def _not_utf8(path: Path, good: bytes) -> None:
    path.write_bytes("naïve;größe\n1;2\n".encode("latin-1") + b"\xff\xfe\x80")


def _zeros(path: Path, good: bytes) -> None:
    """What a file system leaves of a file after a crash."""
    path.write_bytes(bytes(max(len(good), 64)))


def _folder(path: Path, good: bytes) -> None:
    path.mkdir()


def _missing(path: Path, good: bytes) -> None:
    pass


def _unreadable(path: Path, good: bytes) -> None:
    path.write_bytes(good)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")


def _fifo(path: Path, good: bytes) -> None:
    """A pipe that nobody writes to: reading it would wait for ever."""
    os.mkfifo(path)


GENERIC: dict[str, Callable[[Path, bytes], None]] = {
    "empty": _empty, "truncated": _truncated, "random_bytes": _random_bytes, "flipped": _flipped, "renamed": _renamed, "text": _text,
    "not_utf8": _not_utf8, "zeros": _zeros, "folder": _folder, "missing": _missing, "unreadable": _unreadable, "fifo": _fifo,
}  # fmt: skip


def every_form(inputs: Sequence[Input]) -> pytest.MarkDecorator:
    """Parametrise a test over `given` and `form`: every form of every input. Fails where an input names no forms of its own."""
    for given in inputs:
        lacking = {"not_finite", "wrong_shape", "wrong_type"} - set(given.forms) - set(given.accepted)
        assert not lacking, f"{given.name} says nothing of {', '.join(sorted(lacking))}"
    pairs = [(given, form) for given in inputs for form in (*GENERIC, *given.forms)]
    cases = [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}", marks=pytest.mark.timeout(60)) for pair in pairs]
    return pytest.mark.parametrize(("given", "form"), cases)


def refused(folder: Path, given: Input, form: str) -> None:
    """Damage a good file in this form and read it: one sentence that names the file, unless the form is accepted."""
    path = folder / given.name
    good = folder / f"good-{given.name}"
    given.write(good)
    if form in given.forms:
        given.forms[form](path)
    else:
        GENERIC[form](path, good.read_bytes())
    try:
        given.read(path)
    except BaseException as error:
        told = as_user_error(error)
        assert isinstance(told, UserError), f"{form}: a bug to the user, {type(error).__name__}: {error}"
        sentence = str(told)
        assert "\n" not in sentence, sentence
        assert len(sentence) < 600, sentence
        assert path.name in sentence, f"{form}: which file? {sentence}"
    else:
        assert form in given.accepted, f"{form}: {given.name} was taken for a good file"


def accepted(folder: Path, given: Input) -> None:
    """A good file is read: without this, whatever refuses everything would pass."""
    given.write(folder / given.name)
    given.read(folder / given.name)
