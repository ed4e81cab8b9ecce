"""The Python API: every public name is documented, and data may be named wherever it is expected."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import trajstitch
from point import collect
from trajstitch import BC, InputError, cli
from trajstitch.formats import save
from trajstitch.formats.columns import require_columns

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text()
LOG = collect(episodes=12, length=10)


def test_the_page_holds_every_public_name_once() -> None:
    assert sorted(re.findall(r"^::: trajstitch\.(\w+)$", PAGE, re.MULTILINE)) == sorted(trajstitch.__all__)


@pytest.mark.parametrize("name", trajstitch.__all__)
def test_every_public_name_says_what_it_is_and_what_it_takes(name: str) -> None:
    found = getattr(trajstitch, name)
    text = inspect.getdoc(found) or ""
    assert re.match(r"[A-Z].+[.:]", text), "a docstring starts with a sentence"
    assert not text.startswith(f"{name}("), "and it is no dataclass's own signature"
    if inspect.isfunction(found) and len(inspect.signature(found).parameters) > 3:
        for one in inspect.signature(found).parameters:
            assert re.search(rf"\b{one}\b", text), f"nothing is said about `{one}`"


def test_names_that_are_looked_up_on_first_use_are_completed() -> None:
    assert set(trajstitch.__all__) <= set(dir(trajstitch))


@pytest.mark.parametrize("columns", ["columns.toml", {"observations": ["x"]}])
def test_columns_of_another_type_are_refused_in_one_line(columns: object) -> None:
    with pytest.raises(InputError, match=r"must be a trajstitch.Columns, such as .*from_toml.*, not a (str|dict)$"):
        require_columns(columns)


def test_a_file_of_columns_is_named_by_text_or_path(tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text('reward = "gain"')
    expected = trajstitch.Columns(reward="gain")
    assert trajstitch.Columns.from_toml(f"{tmp_path}/columns.toml") == expected
    assert trajstitch.Columns.from_toml(tmp_path / "columns.toml") == expected


def test_data_may_be_named_by_uri_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(LOG, f"npz:{tmp_path}/log.npz")
    algorithm = BC(steps=5, hidden=(4,))
    wanted = trajstitch.train(LOG, algorithm, 1)[0]
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "log.npz", Path("log.npz"), "log.npz", "npz:log.npz"):
        (found,) = trajstitch.train(place, algorithm, 1)
        np.testing.assert_array_equal(found.act(LOG.observations), wanted.act(LOG.observations))
    trajstitch.train("log.npz", algorithm, 1, run="run")
    comparison = trajstitch.compare({"named": "run", "given": wanted}, "log.npz")
    assert [one.policies for one in comparison.estimates] == [1, 1]
    assert comparison.estimates[0].action_error == comparison.estimates[1].action_error
    with pytest.raises(InputError, match="names no environment"):
        trajstitch.evaluate("run", "log.npz")
    Path("log.txt").write_text("1")
    with pytest.raises(InputError, match=r"log\.txt: its name doesn't tell its format"):
        trajstitch.load(Path("log.txt"))
    for place in (Path("nowhere.npz"), "nowhere.npz"):
        with pytest.raises(InputError, match=r"^nowhere\.npz: no such file"):
            trajstitch.stitch(place)
    Path("unnamed.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(InputError, match=r"`columns.observations`.* \(load it first: data = trajstitch.load\('unn"):
        trajstitch.train("unnamed.csv", algorithm, 1)
    with pytest.raises(InputError, match=r"^nowhere: no such file or folder"):
        trajstitch.compare({"a": "nowhere"}, "log.npz")
    trajstitch.save(LOG, "copy.csv")
    assert trajstitch.load("copy.csv").equals(trajstitch.load("table:copy.csv"))
    with pytest.raises(InputError, match="exists already"):
        trajstitch.save(LOG, "log.npz")
    with pytest.raises(InputError, match="its ending tells no format"):
        trajstitch.save(LOG, "log.txt")


def test_a_file_is_named_by_its_path_on_the_command_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(LOG, "table:log.csv")
    assert cli.run(["inspect", "log.csv"]) == 0
    assert cli.run(["train", "bc", "log.csv", "--steps", "5", "--hidden", "4", "--seeds", "1", "--run", "run"]) == 0
    for target in ("table:log.csv", "log.csv"):
        assert cli.run(["convert", "log.csv", target, "--force"]) == 2
        assert "is the source itself" in capsys.readouterr().err
    assert cli.run(["convert", "log.csv", "log.npz"]) == 0
    assert trajstitch.load("npz:log.npz").steps == LOG.steps
    monkeypatch.chdir("/")
    assert (
        cli.run(
            [
                "train",
                "bc",
                f"table:{tmp_path}/log.csv",
                "--steps",
                "5",
                "--hidden",
                "4",
                "--seeds",
                "1",
                "--run",
                str(tmp_path / "run"),
                "--resume",
            ]
        )
        == 0
    )
