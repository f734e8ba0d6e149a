"""The ways in which a run ends early without being a bug, and how to say what the user can fix."""

from __future__ import annotations

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
USER_ERRNO = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EFBIG,
    errno.ENAMETOOLONG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENXIO,
}


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


def as_user_error(error: BaseException) -> BaseException:
    """What the user can fix, as a UserError that says how: most OSErrors, and too little memory. Anything else unchanged."""
    # torch's own, of a GPU and of a CPU
    out_of_memory = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and out_of_memory):
        what = str(error).partition("\n")[0] or "MemoryError"
        return UserError(f"not enough memory ({what}): choose smaller sizes or batches")
    if not isinstance(error, OSError) or error.errno not in USER_ERRNO:
        return error
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"no space left to write{where}: free some, or set paths.runs and $PAPERS_CACHE to folders with room"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UserError("too many files are open: raise the limit with `ulimit -n 1024`, or run fewer jobs at once")
    return UserError(
        f"cannot use a file or folder: {error.strerror}{where}; set paths.runs, $PAPERS_CACHE or the path in question to one you can read and write"
    )


def choose(key: str, value: T, valid: Iterable[T]) -> T:
    """`value`, which must be one of `valid`; UserError names the key, what is near, and all that there is."""
    options = list(valid)
    if value not in options:
        hint = did_you_mean("choose", value, [str(option) for option in options])
        raise UserError(f"unknown {key} {shorten(repr(value))}: {hint}")
    return value


def did_you_mean(lead: str, wrong: Any, names: Sequence[str]) -> str:
    """The end of a message about a wrong name: the nearest right ones, and all of them unless they are very many."""
    close = difflib.get_close_matches(shorten(str(wrong)), names, n=3, cutoff=0.6)
    nearest = f"did you mean {' or '.join(close)}? " if close else ""
    if close and len(names) > 40:
        return f"did you mean {' or '.join(close)}? (--help shows all {len(names)})"
    return f"{nearest}{lead} {', '.join(names) if names else '(none)'}"


def shorten(text: str, most: int = 80) -> str:
    """A text as a message can show it: on one line, its middle left out where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"
