"""Signals ask a run to stop: at once where that is safe, after the step or the import where it is not."""

import os
import signal
import sys
import threading
import time

import pytest

from common import exits, signals
from common.errors import Interrupted, UserError
from common.experiment import load_result
from tests.common.test_experiment import command, start_and_kill, steps_done


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)
    time.sleep(0)  # the handler runs between two bytecodes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_raises_and_is_remembered(number, code):
    with signals.handled():
        with pytest.raises(Interrupted) as stopped:
            send(number)
        assert stopped.value.code == signals.asked() == code
        assert exits.code_of(exits.as_ending(ImportError("what a library made of it"))) == code


def test_a_held_step_ends_before_the_signal_counts():
    with signals.handled():
        with signals.holding():
            send()
            signals.stop_here()  # not yet
            assert signals.asked() == 143
            with pytest.raises(Interrupted):
                signals.stop_if_asked()  # where work was made safe
            with pytest.raises(Interrupted):
                send()  # twice: at once
        with pytest.raises(Interrupted):
            signals.stop_here()


def test_during_an_import_the_signal_waits_for_its_end(tmp_path, monkeypatch):
    (tmp_path / "slow_import.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(0.2)\ndone = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with signals.handled():
        with pytest.raises(Interrupted):
            import slow_import

            time.sleep(5)
        assert sys.modules["slow_import"].done
    del sys.modules["slow_import"], slow_import


def test_handlers_are_put_back_and_forgotten():
    before = signal.getsignal(signal.SIGTERM)
    with signals.handled(), pytest.raises(Interrupted):
        send()
    assert signal.getsignal(signal.SIGTERM) is before
    with signals.handled():
        assert signals.asked() is None
        signals.stop_here()
    worker = threading.Thread(target=lambda: signals.handled().__enter__())  # not of the main thread's concern
    worker.start()
    worker.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_a_library_swallows_still_ends_the_run():
    with signals.handled():
        try:
            send()
        except BaseException:
            pass
        with pytest.raises(Interrupted):
            signals.stop_here()


def test_a_run_stopped_while_it_begins_says_interrupted(toy_paper, tmp_path):
    folder, code = start_and_kill(tmp_path, lambda f: (f / "result.json").exists(), signal.SIGTERM)
    assert code == 143
    assert load_result(folder).status == "interrupted"
    assert steps_done(folder) < 40


@pytest.mark.parametrize(
    "prefix", ["exec >&-;", "exec 2>&-;", "exec <&- >&- 2>&-;", "exec 2>/dev/full;", "ulimit -n 20;"]
)
def test_closed_and_full_streams_are_no_bug(tmp_path, prefix):
    import subprocess

    shell = f"{prefix} exec {sys.executable} -m tests.common.toy run toy +exp=smoke paths.runs={tmp_path}"
    process = subprocess.run(["/bin/bash", "-c", shell], capture_output=True, text=True, timeout=120)
    assert process.returncode in (0, 2), process.stderr
    assert "Traceback" not in process.stderr


def test_a_wrong_matplotlib_backend_stops_nothing(tmp_path):
    process = command("+exp=smoke", env={**os.environ, "MPLBACKEND": "nonsense", "PAPERS_RUNS": str(tmp_path)})
    assert process.returncode == 0, process.stderr


def test_the_worst_code_of_several():
    assert exits.worst([0, 3, 2]) == 2
    assert exits.worst([0, 3, 2, 1]) == 1
    assert exits.worst([0, 143, 1]) == 143
    assert exits.worst([]) == 0
    assert exits.code_of(UserError("x")) == 2
