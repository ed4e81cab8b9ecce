"""Numbers that make no sense are refused in one line, before anything is written."""

from dataclasses import replace
from pathlib import Path

import pytest

import trajstitch
from point import collect
from test_stitching import GREEDY, SMALL
from trajstitch import BC, IQL, TD3BC, Collect, InputError, WeightedBC, cli
from trajstitch.evaluation.evaluate import evaluate
from trajstitch.experiments import grid
from trajstitch.experiments.cells import Cell, Data, Learner
from trajstitch.formats.columns import Columns
from trajstitch.learning.bounds import check_bounds
from trajstitch.models.dynamics import Dynamics
from trajstitch.stitching.config import PRESETS
from trajstitch.stitching.jump_tests import Likelihood

SEEDS = ("-1", str(2**32), "99999999999999999999")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trajstitch.save(collect(episodes=6, length=10), "npz:log.npz")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    before = sorted(path for path in Path().rglob("*") if path.name != "minari")
    assert cli.run(arguments) == 2
    assert sorted(path for path in Path().rglob("*") if path.name != "minari") == before
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    return line


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--rules.threshold", value) for value in ("nan", "-inf", "inf")),
        ("--plan.discount", "1"),
        ("--plan.pessimism", "inf"),
        ("--plan.improvements", "99999999999999999999"),
        ("--inverse.held-out", "1"),
        ("--reward.steps", "0"),
        ("--tests.consistency.limit", "nan"),
        ("--tests.consistency.forward.held-out", "1"),
        ("--neighbours.radius", "nan"),
        *(("--seed", value) for value in SEEDS),
        ("--seeds", "0"),
    ],
)
def test_stitch_refuses(flag, value, capsys):
    assert flag in refused(capsys, "stitch", "npz:log.npz", "npz:better.npz", flag, value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--tests.likelihood.margin", value) for value in ("nan", "inf")),
        ("--tests.likelihood.dynamics.keep", "9"),
        ("--value.held-out", "1"),
    ],
)
def test_stitch_by_the_paper_refuses(flag, value, capsys):
    assert flag in refused(capsys, "stitch", "npz:log.npz", "npz:better.npz", "--preset", "paper", flag, value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--seed", value) for value in SEEDS),
        ("--seeds", "-3"),
        ("--learning-rate", "nan"),
        ("--learning-rate", "inf"),
        ("--top", "nan"),
        ("--hold-out", "nan"),
        ("--columns.action-low", "nan"),
    ],
)
def test_train_refuses(flag, value, capsys):
    assert flag in refused(capsys, "train", "bc", "npz:log.npz", flag, value)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("simulate", "run", "--steps", value) for value in ("0", "-3")),
        *(("evaluate", "run", "--seed", value) for value in SEEDS),
        ("evaluate", "run", "--episodes", "0"),
        ("evaluate", "run", "--processes", "0"),
        *(("collect", "hopper/expert", "--seed", value) for value in SEEDS),
        ("collect", "hopper/expert", "--transitions", "0"),
        ("collect", "hopper/expert", "--processes", "-1"),
        *(("expert", "hopper", "--seed", value) for value in SEEDS),
        ("expert", "hopper", "--snapshot-every", "0"),
    ],
    ids=" ".join,
)
def test_other_verbs_refuse(arguments, capsys):
    assert arguments[-2] in refused(capsys, *arguments)


@pytest.mark.parametrize("seed", [-1, 2**32, 10**20, 1.5, True])
def test_functions_refuse_what_is_no_seed(seed, wrong_types):
    data = collect(episodes=6, length=10)
    for attempt in (
        lambda: trajstitch.stitch(data, SMALL, seed),
        lambda: trajstitch.train(data, BC(), 1, seed),
        lambda: evaluate([], data.metadata, 1, seed),
    ):
        with pytest.raises(InputError, match="`seed` must"):
            attempt()


def test_the_last_seed_counts_too():
    data = collect(episodes=6, length=10)
    with pytest.raises(InputError, match="after it must be at most"):
        trajstitch.train(data, BC(), 2, 2**32 - 1)
    with pytest.raises(InputError, match="after it must be at most"):
        trajstitch.stitch(data, SMALL, 2**32 - 1, stitchings=2)


def test_every_number_of_every_config_refuses_nan():
    def numbers(config, path=()):
        for name, value in vars(config).items():
            for key, part in value.items() if isinstance(value, dict) else ((None, value),):
                if isinstance(part, float | int) and not isinstance(part, bool) and key is None:
                    yield (*path, name)
                elif hasattr(part, "__dataclass_fields__") and key is None:
                    yield from numbers(part, (*path, name))

    def changed(config, path, value):
        inner = value if len(path) == 1 else changed(getattr(config, path[0]), path[1:], value)
        made = replace(config)
        object.__setattr__(made, path[0], inner)
        return made

    count = 0
    for config in (*PRESETS.values(), GREEDY, BC(), WeightedBC(), TD3BC(), IQL(), Collect("hopper/expert")):
        for path in numbers(config):
            count += 1
            with pytest.raises(InputError, match="nan"):
                check_bounds(changed(config, path, float("nan")))
    assert count > 100


def test_whole_numbers_are_whole(wrong_types):
    with pytest.raises(InputError, match=r"`steps` must be a whole number, not 2\.5"):
        check_bounds(replace(BC(), steps=2.5))


@pytest.mark.parametrize("limit", [float("nan"), -1.0])
def test_grid_refuses_a_time_limit_that_is_none(limit, tmp_path):
    with pytest.raises(InputError, match="`time_limit` must be at least 0"):
        grid.run([Cell(Data("hopper/expert"), Learner(BC()))], tmp_path / "grid", limit)
    assert not (tmp_path / "grid").exists()


def test_columns_refuse_nan(tmp_path):
    (tmp_path / "columns.toml").write_text("action_low = [nan]\n")
    with pytest.raises(InputError, match=r"`columns\.action_low` must be a number"):
        Columns.from_toml(tmp_path / "columns.toml")


def test_no_more_members_are_kept_than_trained():
    with pytest.raises(InputError, match=r"`tests\.a\.dynamics\.keep` must be at most"):
        check_bounds(replace(SMALL, tests={"a": Likelihood(Dynamics(members=2, keep=3))}))


def test_a_plan_has_no_more_parts_than_trajectories(monkeypatch):
    from trajstitch.stitching import capacity

    totals = []
    known = capacity.progress

    def progress(title, total, unit="steps"):
        totals.append(total)
        return known(title, total, unit)

    monkeypatch.setattr(capacity, "progress", progress)
    data = collect(episodes=30, length=20)
    assert SMALL.plan is not None
    trajstitch.stitch(data, replace(SMALL, plan=replace(SMALL.plan, parts=100_000)))
    assert max(totals) <= 2 * len(data)


def test_learners_of_one_name_are_different_cells():
    class BC(trajstitch.BC):
        pass

    data = Data("hopper/expert")
    assert Cell(data, Learner(BC())).key != Cell(data, Learner(trajstitch.BC())).key
