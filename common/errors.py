"""The ways in which a run ends early without being a bug, and how to say what the user can fix."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class UserError(Exception):
    """Something the user can fix. The message is one sentence that names the fix; the process exits with 2."""


class MissingData(UserError):
    """A data set that is not on this machine: the one error for which made-up data may stand in."""


class Interrupted(BaseException):
    """The process was asked to stop (SIGINT 130, SIGTERM 143). State is saved; `resume=` goes on."""

    def __init__(self, code: int):
        super().__init__(f"interrupted ({code})")
        self.code = code


@contextlib.contextmanager
def user_errors(about: str = "") -> Iterator[None]:
    """A ValueError of the library inside the block, said to the user as `about: what it says`."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{about}: {error}" if about else str(error)) from error


def choose(key: str, value: T, valid: Iterable[T]) -> T:
    """`value`, which must be one of `valid`; UserError names the key, what is near, and all that there is."""
    options = list(valid)
    if value not in options:
        raise UserError(f"unknown {key} {value!r}: {known('choose', value, [str(option) for option in options])}")
    return value


def known(lead: str, wrong: Any, names: Sequence[str]) -> str:
    """The end of a message about a wrong name: the nearest right ones, then all of them."""
    close = difflib.get_close_matches(str(wrong), names, n=3, cutoff=0.6)
    nearest = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{nearest}{lead} {', '.join(names) if names else '(none)'}"
