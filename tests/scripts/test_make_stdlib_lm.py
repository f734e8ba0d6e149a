"""The small language model: made twice the same, and after a kill; and the committed one is what its card says."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from common.data import stdlib
from common.experiment import launch, load_result
from common.files import ROOT
from common.models import language

TINY = ["model.vocabulary=400", "model.hidden=32", "model.feed_forward=40", "model.blocks=1", "model.context=32", "steps=30", "warmup=5",
        "batch_size=2", "evaluate_every=15", "evaluate_chunks=4", "save_seconds=0.0", "threads=1"]  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library of a few modules, some held out."""
    folder, source = tmp_path_factory.mktemp("library"), Path(sysconfig.get_path("stdlib"))
    for name in ("abc.py", "bisect.py", "copy.py", "glob.py", "heapq.py", "keyword.py", "stat.py", "this.py"):
        shutil.copy(source / name, folder)
    shutil.copytree(source / "json", folder / "json")
    names = [p.relative_to(folder).as_posix() for p in folder.rglob("*.py")]
    extra = next(f"json/part{i}.py" for i in range(1000) if stdlib.held_out(f"json/part{i}.py"))
    shutil.copy(source / "textwrap.py", folder / extra)
    assert any(not stdlib.held_out(name) for name in names)
    return folder


def test_killed_training_resumes_to_the_same_model(library, tmp_path):
    words = [*TINY, f"library={library}"]
    whole = launch("scripts", [*words, f"out={tmp_path / 'whole'}"], "make_stdlib_lm")
    environment = {**os.environ, "PAPERS_RUNS": str(tmp_path / "killed"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "scripts.make_stdlib_lm", *words, f"out={tmp_path / 'resumed'}"], cwd=ROOT, env=environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    parent = tmp_path / "killed" / "scripts" / "default"
    deadline = time.monotonic() + 120
    while (
        time.monotonic() < deadline and process.poll() is None and not list(parent.glob("2*/checkpoints/train.state"))
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder,) = parent.glob("2*")
    assert load_result(folder).status == "running"
    resumed = launch("scripts", [f"resume={folder}"], "make_stdlib_lm")
    assert resumed.metrics == whole.metrics
    assert (tmp_path / "resumed" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    model, tokenizer = language.load(str(tmp_path / "resumed"))
    assert tokenizer.decode(tokenizer("def f(x):\n    return x")["input_ids"]) == "def f(x):\n    return x"
    assert model.config.num_key_value_heads == 4


def test_committed_model_is_what_its_card_says():
    """Its weights load whole, its size keeps the promise, and it predicts source code far better than its vocabulary."""
    from common.data import text
    from common.metrics.language import bits_per_byte, chunk_losses

    folder = language.STDLIB_LM
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 8_000_000
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (8, 4)
    assert config["intermediate_size"] in {m * 2**k for m in (12, 20) for k in range(12)}
    model, tokenizer = language.load("stdlib_lm")
    corpus = stdlib.load()
    if f"`{corpus.sha256}`" not in (folder / "README.md").read_text():
        pytest.skip("another Python than the card's: its library, and so the held-out text, differs")
    some = text.chunked(text.token_stream(corpus.test.values(), tokenizer), 256, limit=12)
    assert bits_per_byte(chunk_losses(model, some), some, text.token_bytes(tokenizer)) < 1.6
