"""Formats: each is a module of one shape, a new one is one file and one line, and names lead where they should."""

import json
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import trajstitch
from test_cli import FORMATS, refused, run, small
from trajstitch import formats
from trajstitch.benchmark import sources
from trajstitch.errors import InputError
from trajstitch.formats import Format, d4rl, minari, npz, table
from trajstitch.formats.columns import Columns

LISTED: dict[str, Format] = {"minari": minari, "d4rl": d4rl, "npz": npz, "table": table}
"""That the modules have the protocol's shape is checked by pyright."""

JSON_LINES = """
    '''JSON lines: one episode per line.'''

    import json
    from pathlib import Path

    import numpy as np

    from trajstitch.data.ragged import offsets_of
    from trajstitch.data.trajectories import Metadata, Trajectories
    from trajstitch.formats import files
    from trajstitch.storage.atomic import replacing

    ENDINGS = (".jsonl",)
    OPTIONS = ()
    require_free, stored_at = files.require_free, files.stored_at
    PARTS = ("observations", "actions", "rewards", "terminated", "truncated")


    def load(location):
        files.require_readable(Path(location))
        episodes = [json.loads(line) for line in Path(location).read_text().splitlines()]
        return Trajectories(
            **{name: np.concatenate([np.array(episode[name]) for episode in episodes]) for name in PARTS},
            offsets=offsets_of(np.array([len(episode["rewards"]) for episode in episodes])),
            metadata=Metadata(name=Path(location).stem, source=f"jsonl:{location}"),
        )


    def save(data, location, *, force):
        with replacing(Path(location), force=force) as fresh, fresh.open("w") as file:
            for episode in data:
                print(json.dumps({name: getattr(episode, name).tolist() for name in PARTS}), file=file)
"""


@pytest.fixture
def json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json_lines.py").write_text(dedent(JSON_LINES))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "json_lines", raising=False)
    monkeypatch.setitem(formats.FORMATS, "jsonl", "json_lines")  # the one line


@pytest.mark.usefixtures("json_lines")
def test_a_new_format_is_one_file_and_one_line(tmp_path, capsys):
    log, data = f"jsonl:{tmp_path}/log.jsonl", small()
    trajstitch.save(data, log)
    np.testing.assert_array_equal(trajstitch.load(log).observations, data.observations)
    assert run("inspect", log, "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 15
    assert run("convert", log, f"npz:{tmp_path}/log.npz") == 0
    assert run("convert", f"npz:{tmp_path}/log.npz", f"jsonl:{tmp_path}/again.jsonl") == 0
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "log.jsonl").read_text()


@pytest.mark.usefixtures("json_lines")
def test_a_new_format_gets_every_error_that_the_others_get(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trajstitch.save(small(), "jsonl:log.jsonl")
    assert "never overwritten" in refused(capsys, "convert", "jsonl:log.jsonl", f"jsonl:{tmp_path}/log.jsonl")
    trajstitch.save(small(), "npz:log.npz")
    assert "log.jsonl exists already" in refused(capsys, "convert", "npz:log.npz", "jsonl:log.jsonl")
    assert run("inspect", "log.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["source"] == "jsonl:log.jsonl"
    assert "did you mean 'jsonl'" in refused(capsys, "inspect", "josnl:log.jsonl")
    assert "write jsonl:FILE.jsonl" in refused(capsys, "inspect", "jsonl:")
    assert "table: URIs, not with jsonl:log.jsonl" in refused(
        capsys, "inspect", "jsonl:log.jsonl", "--columns.reward", "r"
    )


def test_every_format_is_listed_and_has_the_shape_of_one():
    assert {scheme: sys.modules[module] for scheme, module in formats.FORMATS.items()} == LISTED


@pytest.mark.parametrize("uri", FORMATS)
def test_what_is_stored_exists_and_is_apart_from_all_else(uri, tmp_path):
    uri = uri.format(tmp_path)
    assert not formats.exists(uri)
    trajstitch.save(small(), uri)
    assert formats.exists(uri)
    with pytest.raises(InputError, match="never overwritten"):
        formats.require_apart(uri, uri)
    formats.require_apart(uri, f"npz:{tmp_path}/other.npz")


def test_an_option_goes_with_the_formats_that_take_it(tmp_path):
    for attempt in (lambda uri, **options: trajstitch.save(small(), uri, **options), trajstitch.load):
        with pytest.raises(InputError, match=r"`columns` goes with table: URIs, not with npz:.*log\.npz"):
            attempt(f"npz:{tmp_path}/log.npz", columns=Columns(reward="r"))
    with pytest.raises(InputError, match=r"`columns` goes with table: URIs, not with the built-in set hopper/medium"):
        trajstitch.load("hopper/medium", columns=Columns(reward="r"))
    with pytest.raises(InputError, match=r"no format takes `colums` \(did you mean 'columns'\?\)"):
        formats.save(small(), f"npz:{tmp_path}/log.npz", colums=Columns())
    assert list(tmp_path.iterdir()) == []


# Names of data sets


def test_built_in_sets_are_in_the_minari_store():
    assert sources.resolve("hopper/medium-replay") == "minari:trajstitch/hopper/medium-replay-v1"
    assert sources.resolve("npz:log.npz") == "npz:log.npz"


def test_formats_ask_for_a_scheme_and_say_where_built_in_sets_are_loaded():
    with pytest.raises(InputError, match=r"has no scheme.* write one of minari:ID, .*npz:FILE\.npz.* trajstitch\.load"):
        formats.load("hopper/medium")


def test_the_place_of_a_built_in_set_is_a_target_apart_from_other_sets_alone():
    sources.require_apart("hopper/medium", "minari:trajstitch/hopper/expert-v1")
    with pytest.raises(InputError, match="never overwritten"):
        sources.require_apart("hopper/medium", "minari:trajstitch/hopper/medium-v1")
    with pytest.raises(InputError, match="can't be written"):
        sources.require_apart("npz:log.npz", "hopper/medium")
