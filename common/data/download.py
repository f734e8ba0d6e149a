"""Fetch a registry entry that has a public address: resumed when cut short, checked before it is believed."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from filelock import FileLock

from common import files
from common.data.registry import DataSet, File, how_to_get
from common.data.verify import sha256_of_content
from common.errors import UserError

BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
SLOWEST = 1024  # bytes a second, over the last minute: a transfer that drips is as good as none
WINDOW = 60.0  # seconds


class _SameHost(urllib.request.HTTPRedirectHandler):
    """A redirect may change the path, never the host: an address in the registry names who is trusted."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlparse(newurl).netloc != urlparse(req.full_url).netloc:
            raise UserError(
                f"{req.full_url} redirects to another host ({urlparse(newurl).netloc}): not followed; get the file by hand"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(entry: DataSet, timeout: float = TIMEOUT) -> Path:
    """Download the files of an entry into the cache and return the file, or the folder of several.

    A partial file is continued where the server can. Raises UserError for whatever goes wrong; what was downloaded stays.
    """
    if missing := [file for file in entry.files if not file.url]:
        raise UserError(
            f"{entry.title} has no public address ({missing[0].path or entry.paths[0]}): {how_to_get(entry)}"
        )
    target = files.cache_folder() / "data" / entry.paths[0]
    for file in entry.files:
        fetch_file(file, target / file.path if entry.is_folder else target, timeout)
    return target


def fetch_file(file: File, target: Path, timeout: float = TIMEOUT) -> None:
    """Download one file to `target`, through `target`.part; nothing to do where it is there and right."""
    try:
        address = urlparse(str(file.url))
        _ = address.port
    except ValueError:
        address = urlparse("")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise UserError(f"{file.url} is no address that can be fetched: mend it in the registry (https://host/path)")
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):  # two processes must not write one file
        if not (target.exists() and sha256_of_content(target) == file.sha256):
            _fetch_locked(file, target, part, timeout)


def _fetch_locked(file: File, target: Path, part: Path, timeout: float) -> None:
    try:
        try:
            _transfer(file, part, timeout)
        except urllib.error.HTTPError as error:
            if error.code != 416:  # the part is no beginning of what is there now: from the start
                raise
            part.unlink(missing_ok=True)
            _transfer(file, part, timeout)
        found = files.sha256_of(part)
        if found != file.sha256:
            part.unlink()
            raise UserError(
                f"checksum mismatch: {file.url} gave sha256 {found[:12]}..., expected {file.sha256[:12]}...; the file there has changed"
            )
        part.replace(target)
    except (ValueError, http.client.InvalidURL) as error:
        raise UserError(f"{file.url} is no address that can be fetched ({error}): mend it in the registry") from None
    except urllib.error.HTTPError as error:
        raise UserError(
            f"{file.url} answers {error.code} {error.reason}: get the file by hand and put it at {target}"
        ) from None
    except urllib.error.URLError as error:
        raise UserError(
            f"cannot reach {file.url} ({error.reason}): try again later, what was fetched is kept"
        ) from None
    except (ConnectionError, http.client.HTTPException) as error:
        raise UserError(f"{file.url} broke off ({error}): call again, it goes on from there") from None
    except TimeoutError:
        raise UserError(
            f"{file.url} sent nothing for {timeout:g} s: try again later, what was fetched is kept"
        ) from None


def _transfer(file: File, part: Path, timeout: float) -> None:
    have = part.stat().st_size if part.exists() else 0
    if have == file.bytes:
        return
    if have > file.bytes:  # of another version
        part.unlink()
        have = 0
    request = urllib.request.Request(str(file.url), headers={"Range": f"bytes={have}-"} if have else {})
    from common.progress import Progress

    progress = Progress()
    with urllib.request.build_opener(_SameHost).open(request, timeout=timeout) as response:
        resumed = have and response.status == 206
        with open(part, "ab" if resumed else "wb") as output:
            for block in progress.track(
                _blocks(response, str(file.url)),
                f"fetch {part.stem}",
                -(-(file.bytes - (have if resumed else 0)) // BLOCK),
            ):
                output.write(block)
                if output.tell() > file.bytes:
                    break  # more than was announced: the checksum will say so
    progress.close()
    if part.stat().st_size < file.bytes:
        raise UserError(
            f"{file.url} ended early ({part.stat().st_size:,} of {file.bytes:,} bytes): call again, it goes on from there"
        )


def _blocks(response: Any, url: str) -> Iterator[bytes]:
    """What a server sends, in blocks of BLOCK bytes, the last shorter; what came before a break is given first.

    Raises UserError where a minute has brought less than SLOWEST bytes a second.
    """
    block = bytearray()
    begun, came = time.monotonic(), 0
    broken: Exception | None = None
    while True:
        try:
            piece = response.read1(BLOCK)
        except (OSError, http.client.HTTPException) as error:
            piece, broken = b"", error
        block += piece
        came += len(piece)
        if block and (len(block) >= BLOCK or not piece):
            yield bytes(block)
            block.clear()
        if broken is not None:
            raise broken
        if not piece:
            return
        if (passed := time.monotonic() - begun) >= WINDOW:
            if came < SLOWEST * passed:
                raise UserError(
                    f"{url} sends less than {SLOWEST} bytes a second: try again later, what was fetched is kept"
                )
            begun, came = time.monotonic(), 0
