"""Evaluation: roll policies out in the environment that their data names, and score the checkpoints of a run.

Which episodes a process plays, and in which batch, is fixed in advance, and each episode starts from a seed of its
own. So the returns don't depend on the number of processes.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float

from trajstitch.data import environments, spaces
from trajstitch.data.environments import normalised
from trajstitch.data.trajectories import Metadata, Trajectories
from trajstitch.engines.workers import cores
from trajstitch.errors import InputError
from trajstitch.evaluation.compare_runs import compare_runs
from trajstitch.evaluation.processes import evaluators, light_processes, portable
from trajstitch.evaluation.rollouts import Rollout, roll_out
from trajstitch.evaluation.scores import Summary, last_and_best
from trajstitch.formats import metadata
from trajstitch.learning.bounds import SEED, Bounds, check_bounds, check_seeds
from trajstitch.policies.policy import Policy, checkpoints, load_policies
from trajstitch.progress import progress
from trajstitch.storage.circumstances import versions
from trajstitch.storage.runs import Run, damaged

FIRST_SEED = 30_000
"""Seed of the first episode; the built-in policies were chosen and measured on other seeds."""
TOGETHER = 10
"""Episodes stepped together."""


def evaluate(
    policies: Sequence[Policy],
    metadata: Metadata,
    episodes: int = 10,
    seed: int = FIRST_SEED,
    processes: int | None = None,
) -> Float[np.ndarray, "policies episodes"]:
    """Return the return of each episode of each policy; episode i of every policy starts from `seed` + i."""
    check_bounds(Evaluate(episodes=episodes, processes=processes))
    check_seeds(seed, episodes)
    require_fitting(policies, metadata)
    spec = environments.spec(metadata)
    rollouts = [
        Rollout(spec, metadata.observation_space, policy, seed + first, min(TOGETHER, episodes - first))
        for policy in policies
        for first in range(0, episodes, TOGETHER)
    ]
    title = f"Rolling out in {environments.environment_id(metadata)}"
    count = min(processes or cores(), len(rollouts))
    returns: list[float] = []
    with ExitStack() as stack:
        apart: Callable[..., Iterable[list[float]]] = map
        if all(map(portable, (spec, *policies))):
            stack.enter_context(light_processes())
            pool = stack.enter_context(evaluators(count))
            stack.callback(pool.shutdown, cancel_futures=True)  # if it is interrupted, only what is begun is waited for
            apart = pool.map
        advance = stack.enter_context(progress(title, len(policies) * episodes, "episodes"))
        for part in apart(roll_out, rollouts):
            returns += part
            advance(len(part), mean_return=float(np.mean(part)))
    return np.array(returns).reshape(len(policies), episodes)


def require_fitting(policies: Sequence[Policy], metadata: Metadata) -> None:
    """Raise if the data's environment can't be started here or doesn't take these policies."""
    observations, actions = environment_sizes(metadata)
    name = environments.environment_id(metadata)
    for policy in policies:
        if not all(np.isfinite(array).all() for array in policy.tensors().values()):
            raise InputError(f"the policy of seed {policy.seed} holds NaN or infinite weights: its training diverged")
        if (policy.observation_size, policy.action_size) != (observations, actions):
            raise InputError(
                f"{name} has {observations} observations and {actions} actions, but the policy "
                f"{policy.observation_size} and {policy.action_size}"
            )


def environment_sizes(metadata: Metadata) -> tuple[int, int]:
    """Return how many numbers the environment's observations and actions are; raise if it can't be started here."""
    environment = environments.make(metadata)
    observations = spaces.flat_size(metadata.observation_space or environment.observation_space)
    action_space = environment.action_space
    environment.close()
    if not isinstance(action_space, Box):
        name = environments.environment_id(metadata)
        raise InputError(f"{name}: its actions are {action_space}, not a Box of numbers")
    return observations, int(np.prod(action_space.shape))


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """How the policies of a run are scored."""

    episodes: Annotated[int, Bounds(1)] = 10
    """Episodes of each policy."""
    seed: Annotated[int, SEED] = FIRST_SEED
    """Seed of the first episode; the next episodes have the next seeds."""
    last: bool = False
    """Score only the last checkpoint."""
    offline: bool = False
    """Don't roll out: estimate from the data alone, as for data that names no environment."""
    processes: Annotated[int, Bounds(1)] | None = None
    """Worker processes; one for each core if not given. The returns do not depend on it."""
    environment: str | None = None
    """Environment to roll out in instead of the one that the data names: a Gymnasium id, or MODULE:NAME."""
    max_steps: Annotated[int, Bounds(1)] | None = None
    """Steps after which an episode is cut off; if not given, the environment's own limit, or where it has none, the
    length of the longest logged episode."""


def evaluate_run(folder: Path, config: Evaluate | None = None, data: Trajectories | None = None) -> dict[str, Any]:
    """Evaluate the checkpoints of a training; return the result as JSON values and write it into the run's folder.

    Scores of rollouts are written as scores.json. Where nothing can be rolled out (`needs_data`), estimates from the
    logged `data` are written as estimate.json (`evaluation/compare_runs.py`).
    """
    config = config or Evaluate()
    check_bounds(config)
    run = Run.open(folder, "train")
    run.require_writable()
    if needs_data(run, config):
        if data is None:
            raise InputError(f"{run.folder}: nothing is rolled out, so the logged `data` is needed to evaluate it")
        return compare_runs([folder], data)
    found = [load_policies(path) for path in checkpoints(run.folder)[-1 if config.last else 0 :]]
    if not found:
        raise InputError(f"{run.folder}: holds no checkpoints yet; continue its training with `resume=True`")
    known = known_metadata(run, config)
    policies = [policy for checkpoint in found for policy in checkpoint]
    returns = evaluate(policies, known, config.episodes, config.seed, config.processes)
    return keep_scores(run, config, found, returns.reshape(len(found), -1, config.episodes))


def keep_scores(
    run: Run,
    config: Evaluate,
    found: Sequence[Sequence[Policy]],
    returns: Float[np.ndarray, "checkpoints seeds episodes"],
) -> dict[str, Any]:
    """Write the scores of a run's checkpoints, from their returns, as scores.json; return them."""
    known = known_metadata(run, config)
    result = {
        "seeds": [policy.seed for policy in found[-1]],
        "steps": found[-1][0].steps,
        "of_steps": run.fact("steps", int),
        "versions": versions(),
        **conditions(config, known),
        **_from_rollouts(run, known, [policies[0].steps for policies in found], returns),
    }
    run.write_json("scores", result)
    return result


def needs_data(run: Run, config: Evaluate) -> bool:
    """Return whether a run is evaluated from its data alone: its data names no environment, or `offline` is set."""
    return config.offline or environments.environment_id(known_metadata(run, config)) is None


def conditions(config: Evaluate, known: Metadata) -> dict[str, Any]:
    """Return what scores depend on beside the policies: they can be compared only if these are the same."""
    return {
        "environment": environments.environment_id(known),
        "environment_spec": json.loads(known.evaluation_environment or known.environment or "null"),
        "reference": list(environments.reference(known) or ()) or None,
        "episodes": config.episodes,
        "first_seed": config.seed,
    }


def baseline_scores(folder: Path, config: Evaluate, against: Path) -> dict[str, Any]:
    """Return the scores of the run `against`, if they can be compared with those that `config` gives in `folder`."""
    ours, theirs = Run.open(folder, "train"), Run.open(against, "train")
    if not theirs.has("scores"):
        raise InputError(f"{against}: has no scores yet: run `trajstitch evaluate {against}` first")
    again = f"run `trajstitch evaluate {against}` again"
    scores = theirs.read_json("scores", advice=again)
    with damaged(theirs.path("scores.json"), again):
        Summary.from_json(scores["last"])
    for name, value in conditions(config, known_metadata(ours, config)).items():
        if scores.get(name) != value:
            shown = "" if name == "environment_spec" else f" ({scores.get(name)}, not {value})"
            raise InputError(
                f"{against} was evaluated with another {name.replace('_', ' ')}{shown}: scores can be compared only "
                "under the same conditions"
            )
    if scores.get("steps") != load_policies(against)[0].steps:
        raise InputError(f"{against} has been trained on since: evaluate it again")
    return scores


def stored_metadata(run: Run) -> Metadata:
    """Return the metadata of a run's data, which may no longer be there."""
    stored = run.read_json("data", advice="continue its training with `resume=True` to make it again")
    return metadata.from_json(json.dumps(stored), run.fact("source", str))


def known_metadata(run: Run, config: Evaluate) -> Metadata:
    """Return the metadata of a run's data, with the environment and the limit of steps that the user gives.

    An environment of theirs without a limit gets the length of the longest logged episode, as in `learn` and `train`.
    """
    known = stored_metadata(run)
    if config.environment is not None and not config.offline:
        longest = run.config.get("longest")
        known = environments.with_environment(known, config.environment, longest if type(longest) is int else None)
    return known if config.max_steps is None else environments.with_limit(known, config.max_steps)


def _from_rollouts(run: Run, known: Metadata, steps: list[int], returns: np.ndarray) -> dict[str, Any]:
    scores = normalised(returns.mean(-1), known)
    last, best = last_and_best(scores)
    several = {"best": best.to_json()} if len(steps) > 1 else {}
    mean_return = run.fact("mean_return", (int, float))
    if "learned_return" in run.config:  # not of all of the data, where policies learned from a part of it
        mean_return = run.fact("learned_return", (int, float))
    return {
        "data": {"mean_return": mean_return, "score": float(normalised(np.array(mean_return), known))},
        "checkpoints": [
            {"steps": step, "returns": part.tolist(), **Summary.of(score).to_json()}
            for step, part, score in zip(steps, returns, scores, strict=True)
        ],
        "last": last.to_json(),
        **several,
    }
