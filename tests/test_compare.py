"""What logged data alone tells about policies: never a broken one called better, and "can't tell" where it can't."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import trajstitch
from controllers import Controller, controller, mean_action, scaled
from test_policies import chain, one_step
from test_train import TINY, command, refused, swings
from trajstitch.benchmark.sources import load_original
from trajstitch.cli.estimates import print_estimates
from trajstitch.data import maze
from trajstitch.data.stitch_record import original_of
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.compare import LOGGED, Comparison, Estimate, Verdict, compare
from trajstitch.evaluation.compare import _Fits as Fits
from trajstitch.evaluation.estimates import limits_of
from trajstitch.evaluation.scores import Interval
from trajstitch.formats import save
from trajstitch.policies.bc import BC
from trajstitch.policies.train import train
from trajstitch.stitching.result import assemble
from trajstitch.storage.runs import Run
from world import World
from worlds import WORLDS


@cache
def logged(name: str) -> Trajectories:
    return WORLDS[name].collect(0)


def expert(world: World, data: Trajectories) -> Controller:
    """Return the world's good controller, which sees what policies see."""
    hidden = world.start(np.random.default_rng(0), 1)
    return controller(data, lambda rows: world.expert(world.recover(rows, np.repeat(hidden, len(rows), 0))))


def of(comparison: Comparison, name: str) -> Estimate:
    return next(one for one in comparison.estimates if one.name == name)


def estimated(comparison: Comparison, name: str) -> Interval:
    found = of(comparison, name).estimated
    assert found is not None
    return found


def test_a_policy_that_would_go_through_a_wall_nobody_bumped_into_is_not_called_better() -> None:
    data = trajstitch.collect(trajstitch.Collect("maze/mixed", 3_000))
    behind = np.array([0.1, -0.1])

    def straight(rows: np.ndarray) -> np.ndarray:
        ways = np.where(rows[:, :1] < behind[0] / 2, behind, maze.GOAL) - rows
        return ways / np.maximum(np.abs(ways).max(1, keepdims=True), maze.STEP)

    found = compare({"straight": controller(data, straight)}, data)
    assert found.verdict("straight") == "can't tell"


def test_most_logged_episodes_are_within_both_limits() -> None:
    farthest = np.random.default_rng(0).normal(size=(2, 1_000)) ** 2 * [[1.0], [20.0]]
    limits = limits_of(farthest)
    outside = farthest > np.array(limits)[:, None]
    assert abs(outside.any(0).mean() - 0.1) < 0.005
    assert abs(outside[0].mean() - outside[1].mean()) < 0.005
    assert limits_of(farthest[:1].repeat(2, 0)) == pytest.approx([np.quantile(farthest[0], 0.9)] * 2, rel=0.05)


@pytest.mark.parametrize("name", ["set-point", "costs", "exogenous"])
def test_a_broken_controller_is_never_called_better_than_a_good_one(name: str) -> None:
    world, data = WORLDS[name], logged(name)
    good = expert(world, data)
    broken = {"reversed": scaled(good, -1), "still": mean_action(data), "weak": scaled(good, 0.1)}
    found = compare({"good": good, **broken}, data)
    for one in broken:
        assert found.verdict(one, "good") != "better"
        assert found.verdict("good", one) != "worse"
    assert found.deploy in ("good", None)
    assert "good" in found.unbeaten


@pytest.mark.parametrize(("name", "better"), [("set-point", 10.0), ("costs", 2.5)])
def test_what_the_data_shows_is_told(name: str, better: float) -> None:
    """The good and the bad one of the controllers that logged the data: both are covered by it."""
    data = logged(name)
    if name == "set-point":
        good, bad = (
            controller(data, lambda rows, gain=gain: gain * (rows[:, 1:] - rows[:, :1]) + 0.4 * rows[:, :1])
            for gain in (better, -1.5)
        )
    else:
        good, bad = (
            controller(data, lambda rows, gain=gain: -gain * rows[:, :1] - gain * rows[:, 1:]) for gain in (better, 0.1)
        )
    found = compare({"bad": bad, "good": good}, data)
    assert found.verdict("good", "bad") == "better"
    assert found.verdict("bad", "good") == "worse"
    assert found.verdict("good") == "better"
    assert found.deploy == "good"
    assert found.sentence.startswith("Deploy good: ")
    world = WORLDS[name]
    for name, policy in (("good", good), ("bad", bad)):
        true = float(world.play_from(data, policy.act, found.horizon).mean())
        interval = estimated(found, name)
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= true <= interval.high


def test_identical_policies_can_not_be_told_apart() -> None:
    data = logged("set-point")
    good = expert(WORLDS["set-point"], data)
    found = compare({"a": good, "b": [good, good], "c": scaled(good, 0.999)}, data)
    assert {found.verdict(*pair) for pair in (("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"))} == {"can't tell"}
    assert found.deploy is None
    assert "a, b and c" in found.sentence


def test_about_a_policy_far_from_the_data_nothing_is_told() -> None:
    """The data goes through the gate; a policy that goes straight through the wall leaves it."""
    data = logged("two-leg")
    straight = controller(data, lambda rows: np.tile([[1.0, 0.0]], (len(rows), 1)))
    found = compare({"straight": straight, "still": mean_action(data)}, data)
    far = of(found, "straight")
    assert far.outside is not None
    assert far.outside > 0.25
    assert not far.covered
    assert found.verdict("straight") == "can't tell"
    assert "of its steps are beyond the data" in found.sentence


def test_estimates_that_still_move_with_more_data_are_not_settled_and_tell_nothing(capsys) -> None:
    """Far from convergence a broken controller may look better; half of the data then looks otherwise."""
    shape = len(NOISE_OF_FITS), 2, 40
    noise = np.array(NOISE_OF_FITS)[:, None, None] + np.random.default_rng(0).normal(0, 0.1, shape)
    better, none = np.array([[2.0], [0.0]]), np.zeros(2)
    full = Fits(better + noise, better + noise, better + noise, none[:1], none[:1], none)

    def smaller(value: float) -> Fits:
        half = np.array([[value], [0.0]]) + noise
        return replace(full, estimate=half, lower=half, upper=half)

    for value, settled in ((2.0, True), (-0.5, False), (4.5, False)):
        assert full.estimate_of(0, smaller(value), "a", 1, 0.0, 0.05).settled is settled
        assert full.surely_better(0, 1, smaller(value), 0.05) is settled
    data = logged("set-point")
    good = expert(WORLDS["set-point"], data)
    honest = compare({"a": good}, data)
    moving = replace(honest, estimates=(replace(honest.estimates[0], settled=False),), verdicts=DOUBT)
    assert "a: its estimate still moves with more data" in moving.sentence
    runs = [{"name": "a", "steps": 1, "of_steps": 1}]
    print_estimates({**moving.to_json(), "data": "log", "episodes": len(data), "runs": runs})
    assert "NOT SETTLED, still moving with more data: a" in capsys.readouterr().out


NOISE_OF_FITS = (-0.02, -0.01, 0.0, 0.01, 0.02)
DOUBT: dict[tuple[str, str], Verdict] = {("a", LOGGED): "can't tell", (LOGGED, "a"): "can't tell"}


def test_nothing_is_told_where_nothing_can_be_known() -> None:
    data = logged("hidden-luck")
    policies = {
        "right": controller(data, lambda rows: np.tile([[0.3, 0.0]], (len(rows), 1))),
        "to the middle": controller(data, lambda rows: -3 * rows[:, :2]),
        "out": controller(data, lambda rows: 0.3 * rows[:, :2]),
    }
    found = compare(policies, data)
    assert set(found.verdicts.values()) == {"can't tell"}
    assert "don't predict the rewards of other episodes" in found.sentence


def test_too_few_episodes_tell_nothing_and_say_so() -> None:
    data = logged("tiny")
    found = compare({"still": mean_action(data)}, data)
    assert of(found, "still").estimated is None
    assert set(found.verdicts.values()) == {"can't tell"}
    assert "5 episodes are too few" in found.sentence
    json.dumps(found.to_json(), allow_nan=False)


def test_estimate_is_the_policy_s_own_return_where_the_data_covers_it() -> None:
    """One step with reward −(u − s)²: a clone that does u(s) earns E[−(u(s) − s)²], less than noise loses."""
    data = one_step(2000)
    policies = train(data, BC(steps=900, hidden=(32, 32), learning_rate=3e-3, batch_size=128), seeds=2)
    state = data.observations[data.first_rows]
    true = np.mean([float(-np.square((policy.act(state) - 1) / 3 - state).mean()) for policy in policies])
    found = compare({"clone": policies}, data)
    assert estimated(found, "clone").value == pytest.approx(true, abs=0.03)
    assert found.logged.value == pytest.approx(data.returns.mean())
    assert of(found, "clone").action_error == pytest.approx(1 / np.sqrt(12), rel=0.05)


@pytest.mark.parametrize("reward", [1.0, 1e6])
@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "terminated"])
def test_estimates_look_as_far_for_the_policy_as_for_the_data(cut: bool, reward: float) -> None:
    data = chain(cut, reward)
    found = compare({"still": mean_action(data)}, data)
    assert found.horizon == 2
    assert estimated(found, "still").value == pytest.approx(found.logged.value, rel=0.01)
    assert found.logged.value == pytest.approx(reward * (2 if cut else 1))


def test_estimates_count_actions_beyond_the_policy_s_bounds_as_they_are() -> None:
    """Without an action space, bounds are those of the data learned from; what others did beyond is not theirs."""
    random = np.random.default_rng(0)
    data = one_step(2000)
    actions = random.uniform(-3, 3, (2000, 1)).astype(np.float32)
    data = replace(
        data,
        observations=np.zeros_like(data.observations),
        actions=actions,
        rewards=np.where(np.abs(actions[:, 0]) <= 1, 1.0, -5.0),
        metadata=Metadata("no space"),
    )
    inner = data[np.flatnonzero(np.abs(actions[:, 0]) <= 1)]
    policies = train(inner, BC(steps=100, hidden=(8,), batch_size=64), seeds=1)
    assert estimated(compare({"inner": policies}, data), "inner").value == pytest.approx(1.0, abs=0.3)


def test_the_same_comparison_twice_gives_the_same_numbers() -> None:
    data = logged("set-point")[:20]
    policies = {"still": mean_action(data)}
    assert compare(policies, data).to_json() == compare(policies, data).to_json()


def test_unit_and_size_of_rewards_change_no_verdict() -> None:
    data = logged("costs")[:40]
    policies = {"still": mean_action(data), "good": expert(WORLDS["costs"], data)}
    scaled_up = replace(data, rewards=data.rewards * 2.0**20)
    one, other = compare(policies, data), compare(policies, scaled_up)
    assert one.verdicts == other.verdicts
    assert estimated(other, "good").value == pytest.approx(2.0**20 * estimated(one, "good").value, rel=1e-3)


def changed(data: Trajectories) -> Trajectories:
    """Return data whose every episode has a jump and a high reward, as if stitched."""
    origin = Provenance.logged(data.offsets)
    jumps = np.zeros(data.steps, bool)
    jumps[data.offsets[:-1]] = True
    return replace(data, rewards=data.rewards + 100, provenance=replace(origin, stitched=jumps))


def test_stitched_data_is_judged_on_the_original(tmp_path: Path) -> None:
    save(logged("set-point")[:20], f"npz:{tmp_path}/log.npz")
    data = trajstitch.load(f"npz:{tmp_path}/log.npz")
    union = assemble(data, [changed(data)], keep_original=True)
    replaced = assemble(data, [changed(data)], keep_original=False)
    policies = {"still": mean_action(data)}
    assert compare(policies, union).to_json() == compare(policies, data).to_json()
    assert original_of(replaced) is None
    with pytest.raises(InputError, match="is stitched, and estimates need what was logged"):
        compare(policies, replaced)
    assert load_original(replaced).equals(data)
    save(data[:15], f"npz:{tmp_path}/log.npz", force=True)
    with pytest.raises(InputError, match=r"has changed since it was stitched: .* with `data`"):
        load_original(replaced)


def test_wrong_policies_are_refused() -> None:
    data = logged("set-point")
    for policies, said in (
        ({}, "no policies"),
        ({"nothing": []}, "no policies"),
        ({"logged behaviour": mean_action(data)}, "choose another name"),
        ({"other": mean_action(logged("two-leg"))}, "2 observations and 1 actions, but a policy 2 and 2"),
        ({"nan": controller(data, lambda rows: np.full((len(rows), 1), np.nan))}, "NaN or infinite"),
    ):
        with pytest.raises(InputError, match=said):
            compare(policies, data)
    with pytest.raises(InputError, match="no policy 'b' was compared: there are a"):
        compare({"a": mean_action(data)}, data).verdict("b")


@pytest.fixture
def log(tmp_path: Path) -> str:
    save(logged("set-point")[:20], f"npz:{tmp_path}/log.npz")
    return f"npz:{tmp_path}/log.npz"


def test_training_ends_with_an_estimate_beside_other_runs(log: str, tmp_path: Path, capsys) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert command("train", "bc", log, *TINY, "--run", first) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "ESTIMATES of the return over 60 steps",
        "first ~",
        "logged behaviour",
        "of held-out episodes",
        "~: estimated",
        "OTHER-RUN",
    ):
        assert words in shown
    assert command("train", "bc", log, *TINY, "--seed", "7", "--run", second, "--against", first, "--json") == 0
    result = json.loads(capsys.readouterr().out)["estimate"]
    assert [one["name"] for one in result["estimates"]] == ["second", "first"]
    assert result == Run.open(tmp_path / "second").read_json("estimate")
    assert not (tmp_path / "second" / "scores.json").exists()
    assert result["sentence"]
    assert command("evaluate", second, "--against", first, "--json") == 0
    assert json.loads(capsys.readouterr().out) == result
    assert command("evaluate", second, first) == 0
    assert result["sentence"] in capsys.readouterr().out


def test_a_run_on_stitched_data_is_compared_on_its_original(log: str, tmp_path: Path, capsys) -> None:
    data = trajstitch.load(log)
    replaced = assemble(data, [changed(data)], keep_original=False)
    save(replaced, f"npz:{tmp_path}/stitched.npz")
    save(replaced, f"table:{tmp_path}/stitched.csv")
    run, forgetful = str(tmp_path / "run"), str(tmp_path / "forgetful")
    assert command("train", "bc", f"npz:{tmp_path}/stitched.npz", *TINY, "--run", run, "--json") == 0
    result = json.loads(capsys.readouterr().out)["estimate"]
    assert result["logged"]["value"] == pytest.approx(data.returns.mean(), rel=1e-6)
    assert result["data"] == log
    assert command("train", "bc", f"table:{tmp_path}/stitched.csv", *TINY, "--run", forgetful) == 0
    assert "doesn't know its original: name the data that it was stitched from with --data" in capsys.readouterr().err
    assert "with --data" in refused(capsys, "evaluate", forgetful)
    assert command("evaluate", forgetful, "--data", log, "--json") == 0
    assert json.loads(capsys.readouterr().out)["logged"] == result["logged"]


def test_what_goes_without_an_environment_is_refused_with_one(tmp_path: Path, capsys) -> None:
    save(swings(), f"npz:{tmp_path}/swings.npz")
    run = str(tmp_path / "run")
    assert command("train", "bc", f"npz:{tmp_path}/swings.npz", *TINY, "--run", run) == 0
    capsys.readouterr()
    asked = ("train", "bc", f"npz:{tmp_path}/swings.npz", *TINY, "--run", str(tmp_path / "other"), "--against", run)
    assert "names no environment" in refused(capsys, *asked)
    assert not (tmp_path / "other").exists()
    assert command("evaluate", run, "--offline") == 0
    assert "6 episodes are too few" in capsys.readouterr().out
    assert "nothing can be filmed" in refused(capsys, "evaluate", run, "--offline", "--video", f"{tmp_path}/a.gif")
