"""The plan of the experiments at full size: its commands exist, and it goes on where it ended."""

import pytest

from trajstitch.errors import InputError
from trajstitch.experiments import full_size
from trajstitch.experiments.full_size import Piece, Plan, Run, pieces, plan, run, work


def test_every_piece_is_named_once_and_unknown_ones_are_refused(capsys):
    names = [piece.name for piece in pieces(Plan())]
    assert len(set(names)) == len(names) == 4
    plan(Plan())
    page = capsys.readouterr().out
    assert all(f"| {name} |" in page for name in names)
    with pytest.raises(InputError, match="no piece 'table2'"):
        pieces(Plan(only=("table2",)))


def test_further_flags_are_those_of_every_piece():
    found = pieces(Plan(only=("table1", "ablation"), flags="--methods bc ts-bc --known 'an earlier.json'"))
    assert [piece.command[-5:] for piece in found] == [("--methods", "bc", "ts-bc", "--known", "an earlier.json")] * 2


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """A piece that is a small script: each of its two sets is done at its second call."""
    (tmp_path / "twice.py").write_text(
        "import pathlib, sys\n"
        "names = sys.argv[2:sys.argv.index('--time-limit')]\n"
        "stage = sys.argv[sys.argv.index('--until') + 1] if '--until' in sys.argv else 'end'\n"
        "for name in names: pathlib.Path(name).open('a').write('x')\n"
        "pathlib.Path('stages').open('a').write(f'{stage} {len(names)} ')\n"
        "done = sum(len(pathlib.Path(name).read_text()) > 1 for name in names)\n"
        "print(f'{done} of {len(names)} cells are measured', file=sys.stderr)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(full_size, "pieces", lambda _: [Piece("twice", ("twice",), ("one", "two"), 1.0, "")])
    return tmp_path


def test_a_piece_is_called_again_until_all_its_cells_are_measured(counting, capsys):
    asked = Run(folder=counting / "full", minutes=5)
    run(asked)
    assert "twice: not done yet" in capsys.readouterr().out
    run(asked)
    assert "left: nothing" in capsys.readouterr().out
    run(asked)
    assert (counting / "one").read_text() == (counting / "two").read_text() == "xx"


def test_stitchings_are_planned_side_by_side_between_what_is_made_for_all_sets(counting, capsys):
    run(Run(folder=counting / "full", minutes=5, processes=2))
    assert "twice: done" in capsys.readouterr().out
    stages = (counting / "stages").read_text().strip()
    assert stages == "data 2 models 2 " + "stitchings 1 " * 2 * 3 + "end 2"


def test_a_piece_that_fails_is_named_with_its_command():
    failing = Piece("failing", ("trajstitch", "reproduce", "tabel1"), ("hopper/medium",), 1.0, "")
    with pytest.raises(InputError, match="failing failed with exit code 2: trajstitch reproduce tabel1"):
        work(failing, 60)
