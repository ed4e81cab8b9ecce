"""The plan of the experiments at full size: its commands exist, and it goes on where it ended."""

import pytest

from trajstitch.errors import InputError
from trajstitch.experiments import full_size
from trajstitch.experiments.full_size import Piece, Plan, Run, pieces, plan, run, work


def test_every_piece_is_named_once_and_unknown_ones_are_refused(capsys):
    names = [piece.name for piece in pieces(Plan())]
    assert len(set(names)) == len(names) == 7
    plan(Plan())
    page = capsys.readouterr().out
    assert all(f"| {name} |" in page for name in names)
    with pytest.raises(InputError, match="no piece 'table2'"):
        pieces(Plan(only=("table2",)))


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """Pieces that are small scripts: one is done at its second call, one never ends."""
    (tmp_path / "twice.py").write_text(
        "import pathlib, sys\n"
        "seen = pathlib.Path('calls'); seen.write_text(seen.read_text() + 'x' if seen.exists() else 'x')\n"
        "print(f'{min(len(seen.read_text()), 2)} of 2 cells are measured', file=sys.stderr)\n"
    )
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    twice = Piece("twice", ("twice",), 1.0, "")
    monkeypatch.setattr(full_size, "pieces", lambda _: [twice])
    return twice, Piece("endless", ("endless", str(tmp_path / "none")), 1.0, "", limited=False)


def test_a_piece_is_called_again_until_all_its_cells_are_measured(counting, tmp_path, capsys):
    asked = Run(folder=tmp_path / "full", minutes=5)
    run(asked)
    assert "twice: not done yet" in capsys.readouterr().out
    run(asked)
    assert "left: nothing" in capsys.readouterr().out
    run(asked)
    assert (tmp_path / "calls").read_text() == "xx"


def test_a_piece_that_takes_no_limit_is_interrupted(counting):
    assert work(counting[1], 0.5) is False


def test_a_piece_that_fails_is_named_with_its_command():
    failing = Piece("failing", ("trajstitch", "reproduce", "tabel1"), 1.0, "")
    with pytest.raises(InputError, match="failing failed with exit code 2: trajstitch reproduce tabel1"):
        work(failing, 60)
