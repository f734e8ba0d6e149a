"""Data: found where it lies, checked, fetched from a server that misbehaves."""

import gzip
import hashlib
import http.server
import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import ClassVar

import pytest

from common.data import download, registry, stdlib, verify
from common.data.locate import locate, own_file, real_or_synthetic, status
from common.data.registry import DataSet, File
from common.errors import MissingData, UserError
from common.files import ROOT
from common.run import Run

CONTENT = bytes(range(256)) * 8192  # 2 MiB
SHA = hashlib.sha256(CONTENT).hexdigest()


def make_entry(url=None, sha=SHA, **options):
    return DataSet(
        "thing", "A thing", "MIT", ("things/thing.bin", "thing.bin"), (File("", sha, len(CONTENT), url),), **options
    )


@pytest.fixture
def thing(monkeypatch):
    """A registry of one entry; call to change it."""

    def change(entry):
        monkeypatch.setattr(registry, "entries", lambda: {"thing": entry})
        return entry

    change(make_entry())
    return change


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_each_folder_of_the_mirror_is_searched(thing, tmp_path, monkeypatch):
    (tmp_path / "two" / "things").mkdir(parents=True)
    (tmp_path / "two" / "things" / "thing.bin").write_bytes(CONTENT)
    monkeypatch.setenv("PAPERS_DATA", os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]))
    assert locate("thing") == tmp_path / "two" / "things" / "thing.bin"


def test_a_gz_beside_the_plain_file_counts(thing, tmp_path, monkeypatch):
    (tmp_path / "thing.bin.gz").write_bytes(gzip.compress(CONTENT))
    monkeypatch.setenv("PAPERS_DATA", str(tmp_path))
    assert verify.read_bytes(locate("thing")) == CONTENT


def test_wrong_checksum_is_refused_even_after_a_good_look(thing, tmp_path, monkeypatch):
    path = tmp_path / "thing.bin"
    path.write_bytes(CONTENT)
    monkeypatch.setenv("PAPERS_DATA", str(tmp_path))
    assert locate("thing") == path
    path.write_bytes(CONTENT[:-1] + b"x")
    os.utime(path, (1, 1))
    with pytest.raises(UserError, match="checksum mismatch"):
        locate("thing")


def test_verification_is_remembered(thing, tmp_path, monkeypatch):
    (tmp_path / "thing.bin").write_bytes(CONTENT)
    monkeypatch.setenv("PAPERS_DATA", str(tmp_path))
    locate("thing")
    monkeypatch.setattr(verify, "sha256_of_content", lambda path: pytest.fail("read again"))
    locate("thing")


def test_missing_data_says_how_to_get_it(thing):
    with pytest.raises(UserError, match=r"PAPERS_DATA"):
        locate("thing")
    thing(make_entry(how="ask the hospital"))
    with pytest.raises(UserError, match=r"ask the hospital.*scripts\.data verify thing"):
        locate("thing")


def test_made_up_data_stand_in_for_what_is_missing_and_never_for_what_is_damaged(thing, tmp_path, monkeypatch):
    run = Run(tmp_path / "run", paper="toy")
    get = partial(real_or_synthetic, "thing", verify.read_bytes, partial(bytes, b"made up"))
    monkeypatch.setenv("PAPERS_DATA", str(tmp_path))
    assert get(run=run) == b"made up"
    assert run.data["thing"]["source"] == "synthetic"
    assert "not here" in run.notes[0]
    with pytest.raises(MissingData):
        get(run=run, fallback=False)
    (tmp_path / "thing.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match="checksum"):
        get(run=run)
    (tmp_path / "thing.bin").write_bytes(CONTENT)
    assert get(run=run) == CONTENT
    assert run.data["thing"]["source"] == "real"

    def unreadable(path):
        raise ValueError("row 3 has no label")

    with pytest.raises(UserError, match=r"thing\.bin: row 3"):
        real_or_synthetic("thing", unreadable, lambda: b"", run=run)


def test_a_users_own_file_or_folder_is_recorded_with_the_sum_of_its_content(tmp_path):
    run = Run(tmp_path / "run", paper="toy")
    with pytest.raises(UserError, match=r"data\.path: there is no"):
        own_file(str(tmp_path / "nothing"), "data.path", run)
    folder = tmp_path / "own"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.bin").write_bytes(CONTENT)
    assert own_file(str(folder / "deep" / "a.bin"), "data.path", run) == folder / "deep" / "a.bin"
    assert run.data["data.path"]["sha256"] == SHA
    with pytest.raises(UserError, match="is a folder: give a file"):
        own_file(str(folder), "data.path", run)
    own_file(str(folder), "data.path", run, folder=True)
    before = run.data["data.path"]["sha256"]
    (folder / "deep" / "a.bin").rename(folder / "deep" / "b.bin")
    own_file(str(folder), "data.path", run, folder=True)
    assert run.data["data.path"]["sha256"] != before


def test_unknown_name_lists_the_registry():
    with pytest.raises(UserError, match="wikitext2_test"):
        locate("wikitext3_test")


def test_registry_is_well_formed():
    for name, entry in registry.entries().items():
        assert entry.title, name
        assert entry.licence, name
        assert entry.paths, name
        for file in entry.files:
            assert file.sha256 == "" or len(file.sha256) == 64, name
            assert file.url is None or (file.url.startswith("https://") and file.sha256), (
                f"{name}: an address needs https and a checksum"
            )
        assert entry.how or all(file.url for file in entry.files), f"{name}: say how to get it"


def test_each_paper_s_own_data_sets_are_found_by_name_and_a_name_stands_once(monkeypatch):
    assert {"wikitext2_test", "deep_10k", "etth1", "anac"} <= set(registry.entries())
    raw = {"title": "t", "licence": "l", "paths": ["p"], "how": "ask"}
    monkeypatch.setattr(registry, "_sources", lambda: [("a", {"x": raw}), ("b", {"x": raw})])
    registry.entries.cache_clear()
    try:
        with pytest.raises(UserError, match="x of b is in the registry already"):
            registry.entries()
        monkeypatch.setattr(registry, "_sources", lambda: [("a", {"x": {"title": "t"}})])
        with pytest.raises(UserError, match="x of a is not as it should be"):
            registry.entries()
    finally:
        registry.entries.cache_clear()


def test_weights_in_the_repository_stay_small():
    """All that was made here and is committed, together: what is larger is fetched by its sum."""
    files = [path for path in (ROOT / "data" / "models").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) <= 40_000_000


@pytest.mark.realdata
def test_mirror_files_verify():
    for name in ("wikitext2_test", "wikitext2_valid", "stories260k", "tinystories_sample"):
        assert status(name)[0] == "found", status(name)


# ---- fetching --------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    seen: ClassVar[list] = []

    def do_GET(self):
        Server.seen.append((self.path, self.headers.get("Range")))
        if self.path == "/missing":
            self.send_error(404)
        elif self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "http://localhost:1/thing")
            self.end_headers()
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/thing")
            self.end_headers()
        elif self.path == "/changed" and self.headers.get("Range"):
            self.send_error(416)
        elif self.path == "/drip":
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b"x")
                time.sleep(0.05)
        elif self.path == "/silent":
            time.sleep(1.5)
        else:
            start = int(self.headers["Range"][6:-1]) if self.headers.get("Range") and self.path != "/norange" else 0
            body = CONTENT[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if self.path == "/short" and not start else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Server.seen = []
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_fetch_puts_a_whole_file_in_the_cache(server, thing):
    path = download.fetch(thing(make_entry(f"{server}/thing")))
    assert path.read_bytes() == CONTENT
    assert locate("thing") == path


def test_cut_download_goes_on_where_it_stopped(server):
    entry = make_entry(f"{server}/short")
    with pytest.raises(UserError, match="ended early"):
        download.fetch(entry)
    assert download.fetch(entry).read_bytes() == CONTENT
    assert Server.seen[1][1] == f"bytes={len(CONTENT) // 2}-"


def test_server_without_ranges_starts_over(server, tmp_path):
    part = tmp_path / "cache" / "data" / "things" / "thing.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100)
    assert download.fetch(make_entry(f"{server}/norange")).read_bytes() == CONTENT


def test_changed_content_is_refused_and_dropped(server, tmp_path):
    with pytest.raises(UserError, match="checksum mismatch"):
        download.fetch(make_entry(f"{server}/thing", sha="0" * 64))
    assert [p.name for p in (tmp_path / "cache" / "data" / "things").iterdir()] == ["thing.bin.lock"]


@pytest.mark.parametrize(
    ("path", "message"), [("missing", "404"), ("elsewhere", "another host"), ("silent", "sent nothing|cannot reach")]
)
def test_each_refusal_is_one_sentence(server, path, message):
    with pytest.raises(UserError, match=message) as caught:
        download.fetch(make_entry(f"{server}/{path}"), timeout=0.5)
    assert "\n" not in str(caught.value)


def test_redirect_within_the_host_is_followed(server):
    assert download.fetch(make_entry(f"{server}/moved")).read_bytes() == CONTENT


def test_a_part_that_the_server_does_not_know_starts_over(server, tmp_path):
    part = tmp_path / "cache" / "data" / "things" / "thing.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"of another version")
    assert download.fetch(make_entry(f"{server}/changed")).read_bytes() == CONTENT


def test_a_server_that_drips_is_left(server, monkeypatch):
    monkeypatch.setattr(download, "WINDOW", 0.3)
    with pytest.raises(UserError, match="bytes a second"):
        download.fetch(make_entry(f"{server}/drip"))


@pytest.mark.parametrize(
    "url", ["nowhere", "ftp://x/y", "http://", "http://[::1", "http://a b/c", "http://x:port/", "file:///etc/passwd"]
)
def test_a_malformed_address_is_refused(url):
    with pytest.raises(UserError, match="no address"):
        download.fetch(make_entry(url))


def test_unreachable_server_is_said(thing):
    with pytest.raises(UserError, match="cannot reach"):
        download.fetch(make_entry("http://127.0.0.1:9/thing"), timeout=0.5)


def test_full_disk_is_said_and_keeps_nothing_half_read(server, tmp_path, monkeypatch):
    part = tmp_path / "cache" / "data" / "things" / "thing.bin.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")
    from common.errors import as_user_error

    with pytest.raises(OSError) as caught:
        download.fetch(make_entry(f"{server}/thing"))
    assert "no space left" in str(as_user_error(caught.value))
    assert not part.with_name("thing.bin").exists()


def test_nothing_is_downloaded_unasked(server, thing):
    thing(make_entry(f"{server}/thing"))
    with pytest.raises(UserError, match=r"data\.download=true"):
        locate("thing")
    assert Server.seen == []


def test_data_command_lists_and_verifies(tmp_path):
    def data(*words):
        return subprocess.run(
            [sys.executable, "-m", "scripts.data", *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
            env={**os.environ, "PAPERS_DATA": ""},
        )

    assert "wikitext2_test" in data("list").stdout
    refused = data("verify", "llama2_7b")
    assert refused.returncode == 2
    assert "accept the licence" in refused.stdout
    unknown = data("fetch", "nothing")
    assert unknown.returncode == 2
    assert "Traceback" not in unknown.stderr


# ---- the standard library as text ------------------------------------------------------------------------------------


def test_stdlib_corpus_is_the_same_twice_and_leaves_out_what_it_should():
    corpus = stdlib.load()
    assert corpus == stdlib.load()
    assert not any(part in stdlib.EXCLUDED for path in corpus.files for part in path.split("/"))
    assert list(corpus.files) == sorted(corpus.files)
    assert not set(corpus.train) & set(corpus.test)
    assert 0.01 < len(corpus.test) / len(corpus.files) < 0.12


def test_stdlib_corpus_of_a_folder_without_source_is_refused(tmp_path):
    (tmp_path / "json.pyc").write_bytes(b"")
    (tmp_path / "not_a_stdlib_module.py").write_text("x = 1")
    with pytest.raises(UserError, match="no standard-library source"):
        stdlib.load(tmp_path)


def test_bytes_that_are_not_utf8_are_replaced(tmp_path):
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "tool.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "json" / "tests").mkdir()
    (tmp_path / "json" / "tests" / "x.py").write_text("left out")
    assert stdlib.load(tmp_path).files == {"json/tool.py": "# caf�\n"}
