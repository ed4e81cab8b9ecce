"""Ctrl-C ends a command within two seconds, wherever it is; it says how to go on and leaves nothing half-made."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_data import random_data
from trajstitch import cli
from trajstitch.cli import interrupts
from trajstitch.evaluation.processes import evaluators
from trajstitch.formats import save
from trajstitch.learning.compiled import compiled, wait_for
from trajstitch.storage import stopping

LATE = 15.0
"""Seconds after which it is late even on a busy machine; the work that is interrupted takes minutes."""

STUCK = """
    import hashlib, sys
    from pathlib import Path
    import trajstitch.cli.inspect as verb
    from trajstitch.cli import main
    from trajstitch.storage.atomic import replacing
    from trajstitch.storage.stopping import resumable

    def execute(self):
        with resumable("set `resume=True` to go on"), replacing(Path(sys.argv[1]), force=False) as fresh:
            fresh.write_text("half of it")
            print("at work", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C, which no exception reaches

    verb.Command.execute = execute
    main(["inspect", f"npz:{sys.argv[1]}"])
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_a_library_keeps_busy_ends_and_leaves_nothing(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STUCK), str(tmp_path / "new" / "made.npz")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "at work\n"
        asked = time.monotonic()
        job.send_signal(number)
        said = job.communicate(timeout=120)[1]
        assert time.monotonic() - asked < LATE
    assert job.returncode == code
    assert said == "set --resume to go on\ninterrupted\n"
    assert list(tmp_path.iterdir()) == []


LOST = """
    import atexit, os, signal, sys, time
    from trajstitch.cli import interrupts

    number = int(sys.argv[1])

    class Callback:
        def __del__(self):  # Python can't raise from here
            os.kill(os.getpid(), number)

    interrupts.watch()
    if sys.argv[2] == "in a callback":
        Callback()
        time.sleep(60)
    atexit.register(os.kill, os.getpid(), number)
    interrupts.finish(0)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", ["in a callback", "at the end"])
def test_a_signal_where_nothing_can_be_raised_prints_no_traceback(number: int, code: int, moment: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(LOST), str(int(number)), moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    expected = (code, "interrupted\n") if moment == "in a callback" else (0, "")
    assert (done.returncode, done.stderr) == expected


def test_a_command_is_interrupted_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupts, "watch", interrupted)
    monkeypatch.setattr(interrupts, "finish", sys.exit)
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


WORKERS = """
    import time
    from trajstitch.cli import interrupts
    from trajstitch.evaluation.processes import evaluators, pool

    if __name__ == "__main__":
        interrupts.watch()
        with pool(2) as one, evaluators(2) as other:
            list(other.map(abs, one.map(abs, [-1, -2])))
            print("at work", flush=True)
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                interrupts.finish(130)
"""


def test_worker_processes_end_with_a_command_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(WORKERS))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "at work\n"
        job.send_signal(signal.SIGINT)
        said = job.communicate(timeout=120)[1]
    assert (job.returncode, said) == (130, "")


def test_processes_that_evaluate_leave_an_interruption_to_their_parent() -> None:
    with evaluators(1) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result() == signal.SIG_IGN


def test_training_is_interrupted_within_a_chunk_and_keeps_the_chunks_before(tmp_path: Path) -> None:
    save(random_data(np.random.default_rng(0), coarse=False), f"npz:{tmp_path}/data.npz")
    run = tmp_path / "run"
    # A chunk of networks as wide as these takes minutes.
    command = [sys.executable, "-m", "trajstitch", "train", "iql", f"npz:{tmp_path}/data.npz", "--seeds", "3"]
    with subprocess.Popen(
        [*command, "--hidden", "2048", "2048", "--run", str(run)], stderr=subprocess.PIPE, text=True
    ) as job:
        while not (run / "data.json").exists():
            time.sleep(0.1)
        time.sleep(4)
        asked = time.monotonic()
        job.send_signal(signal.SIGINT)
        said = job.communicate(timeout=120)[1]
        assert time.monotonic() - asked < LATE
    assert job.returncode == 130
    assert "the same command with --resume continues\ninterrupted\n" in said
    assert "Traceback" not in said
    assert not list(run.glob(".trajstitch-*/"))


def test_a_resumable_block_says_how_to_go_on_only_if_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "trajstitch"), stopping.resumable("go on"):
        pass
    assert not caplog.messages
    with caplog.at_level("INFO", "trajstitch"), pytest.raises(KeyboardInterrupt), stopping.resumable("go on"):
        raise KeyboardInterrupt
    assert caplog.messages == ["go on"]


# Compiled functions


def test_a_compiled_function_gives_the_bits_of_jit_and_keeps_what_is_no_array() -> None:
    def function(numbers, name, pair):
        return {"sum": jnp.sin(numbers).sum() + pair[0], "name": name, "pair": pair}

    numbers = np.linspace(0, 1, 1000, dtype=np.float32)
    found = compiled(function)(numbers, "a name", (jnp.ones(3), 2.0))
    assert (found["name"], found["pair"][1]) == ("a name", 2.0)
    expected = jax.jit(lambda x, y: jnp.sin(x).sum() + y)(numbers, jnp.ones(3))
    np.testing.assert_array_equal(found["sum"], expected)
    assert compiled(function)(numbers, "another", (jnp.ones(3), 3.0))["name"] == "another"


def test_a_compiled_function_does_not_wait() -> None:
    @compiled
    def slow(matrix):
        return jax.lax.fori_loop(0, 200, lambda _, product: product @ matrix / 500, matrix)

    matrix = jnp.ones((700, 700))
    wait_for(slow(matrix))
    start = time.monotonic()
    product = slow(matrix)
    asked = time.monotonic() - start
    wait_for(product)
    assert asked < 0.5 * (time.monotonic() - start)
