"""Evaluation: roll policies out in the environment their data names, and keep every episode's return.

Which episodes a process plays, and in which batch, is settled in advance, and each starts from a seed of its own. So
the returns are the same whatever the number of processes. These import no jax and start in a second or two.
"""

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float
from tyro.conf import Positional, arg

from trajstitch.data import environments, spaces
from trajstitch.data.environments import normalised
from trajstitch.data.trajectories import Metadata
from trajstitch.errors import InputError
from trajstitch.evaluation.processes import evaluators, light_processes
from trajstitch.evaluation.rollouts import play
from trajstitch.evaluation.scores import Summary, last_and_best
from trajstitch.formats import metadata
from trajstitch.policies.policy import Policy, checkpoints, load_policies
from trajstitch.progress import progress
from trajstitch.storage.atomic import require_free
from trajstitch.storage.runs import Run, versions

FIRST_SEED = 30_000
"""Of the environment's first episode; the ladders' checkpoints were chosen and measured on others."""
TOGETHER = 10
"""Episodes stepped together."""


class Rollout(NamedTuple):
    """What one process does at a time."""

    environment: str
    """An EnvSpec as JSON."""
    observation_space: gymnasium.Space | None
    policy: Policy
    first_seed: int
    episodes: int


def evaluate(
    policies: Sequence[Policy],
    metadata: Metadata,
    episodes: int = 10,
    seed: int = FIRST_SEED,
    processes: int | None = None,
) -> Float[np.ndarray, "policies episodes"]:
    """The return of each policy's episodes; episode i of every policy starts from the seed `seed` + i."""
    if episodes < 1 or (processes is not None and processes < 1):
        raise InputError("the numbers of episodes and of processes must be at least 1")
    if seed < 0:
        raise InputError(f"--seed must not be negative, not {seed}")
    environment = metadata.evaluation_environment or metadata.environment or ""
    require_fitting(policies, metadata)
    rollouts = [
        Rollout(environment, metadata.observation_space, policy, seed + first, min(TOGETHER, episodes - first))
        for policy in policies
        for first in range(0, episodes, TOGETHER)
    ]
    title = f"Rolling out in {environments.environment_id(metadata)}"
    count = min(processes or os.cpu_count() or 1, len(rollouts))
    returns: list[float] = []
    with (
        light_processes(),
        evaluators(count) as pool,
        progress(title, len(policies) * episodes, "episodes") as advance,
    ):
        for part in pool.map(roll_out, rollouts):
            returns += part
            advance(len(part), mean_return=float(np.mean(part)))
    return np.array(returns).reshape(len(policies), episodes)


def require_fitting(policies: Sequence[Policy], metadata: Metadata) -> None:
    """Raise unless the data's environment can be started here and takes these policies."""
    environment = environments.make(metadata)
    observations = spaces.flat_size(metadata.observation_space or environment.observation_space)
    acted = environment.action_space
    environment.close()
    if not isinstance(acted, Box):
        raise InputError(f"{environments.environment_id(metadata)}: its actions are {acted}, not a Box of numbers")
    for policy in policies:
        if not all(np.isfinite(part).all() for layer in policy.layers for part in layer):
            raise InputError(f"the policy of seed {policy.seed} holds NaN or infinite weights: its training diverged")
        sizes = len(policy.units.mean), len(policy.units.low)
        if sizes != (observations, int(np.prod(acted.shape))):
            raise InputError(
                f"{environments.environment_id(metadata)} has {observations} observations and "
                f"{int(np.prod(acted.shape))} actions, but the policy {sizes[0]} and {sizes[1]}"
            )


def roll_out(rollout: Rollout) -> list[float]:
    lanes = _lanes(rollout.environment, rollout.episodes)
    space = rollout.observation_space or lanes[0].observation_space
    acted = lanes[0].action_space
    assert isinstance(acted, Box)

    def act(observations: np.ndarray) -> np.ndarray:
        return rollout.policy.act(observations).astype(acted.dtype).reshape(-1, *acted.shape)

    return play(lanes, act, rollout.first_seed, lambda observation: flat(space, observation))


def flat(space: gymnasium.Space, observation: Any) -> np.ndarray:
    """One observation as a row."""

    def at(path: tuple[str, ...]) -> np.ndarray:
        part = observation
        for name in path:
            part = part[name]
        return np.ravel(part)

    return np.concatenate([at(path) for path, _ in spaces.leaves(space)])


@cache
def _lanes(environment: str, count: int) -> list[gymnasium.Env]:
    """A process's environments, made once: a reset leaves nothing of the episode before."""
    return [environments.make(Metadata(environment=environment), disable_env_checker=True) for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score the policies of a run."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """The folder of a `trajstitch train`."""
    episodes: int = 10
    """Episodes of each policy."""
    seed: int = FIRST_SEED
    """The first episode's; the others' follow it."""
    last: bool = False
    """The last checkpoint alone."""
    offline: bool = False
    """Don't roll out: give what the data alone can tell, as for data that names no environment."""
    estimate_steps: int = 50_000
    """Without rollouts: gradient steps of fitted-Q evaluation."""
    processes: int | None = None
    """Worker processes; one a core if not given. The returns do not depend on it."""


def evaluate_run(config: Evaluate) -> dict[str, Any]:
    """Evaluate a training's checkpoints; the result, JSON values, is also left in its folder.

    As scores.json, or as estimate.json where nothing was rolled out.
    """
    run = Run.open(config.run, "train")
    found = [load_policies(path) for path in checkpoints(run.folder)[-1 if config.last else 0 :]]
    if not found:
        raise InputError(f"{run.folder}: holds no checkpoints yet; go on with it by `trajstitch train ... --resume`")
    known = stored_metadata(run)
    facts = {
        "seeds": [policy.seed for policy in found[-1]],
        "steps": found[-1][0].steps,
        "of_steps": run.facts["config"]["steps"],
        "versions": versions(),
    }
    if config.offline or environments.environment_id(known) is None:
        result = facts | _from_data(run, found[-1], config.estimate_steps)
    else:
        policies = [policy for checkpoint in found for policy in checkpoint]
        returns = evaluate(policies, known, config.episodes, config.seed, config.processes)
        returns = returns.reshape(len(found), -1, config.episodes)
        result = facts | conditions(config, known)
        result |= _from_rollouts(run, known, [policies[0].steps for policies in found], returns)
    run.write_json("scores" if "last" in result else "estimate", result)
    return result


def conditions(config: Evaluate, known: Metadata) -> dict[str, Any]:
    """What scores depend on beside the policies: they compare only where these are the same."""
    return {
        "environment": environments.environment_id(known),
        "environment_spec": json.loads(known.evaluation_environment or known.environment or "null"),
        "reference": list(environments.reference(known) or ()) or None,
        "episodes": config.episodes,
        "first_seed": config.seed,
    }


def baseline_scores(config: Evaluate, against: Path) -> dict[str, Any]:
    """The scores of another run, if they compare with those that `config` asks for."""
    theirs = Run.open(against, "train")
    known = stored_metadata(Run.open(config.run, "train"))
    if config.offline or environments.environment_id(known) is None:
        raise InputError(f"{config.run}: not rolled out, so there are no scores to compare with those of {against}")
    if not theirs.has("scores"):
        raise InputError(f"{against}: has no scores yet: `trajstitch evaluate {against}` gives it some")
    scores = theirs.read_json("scores")
    for name, ours in conditions(config, known).items():
        if scores.get(name) != ours:
            told = "" if name == "environment_spec" else f" ({scores.get(name)}, not {ours})"
            raise InputError(
                f"{against} was evaluated with another {name.replace('_', ' ')}{told}: scores compare only under the "
                "same conditions"
            )
    if scores["steps"] != load_policies(against)[0].steps:
        raise InputError(f"{against} has been trained on since: evaluate it again")
    return scores


def stored_metadata(run: Run) -> Metadata:
    """What the run knows about its data, which may be gone."""
    return metadata.from_json(json.dumps(run.read_json("data")), run.facts["config"]["source"])


def _from_rollouts(run: Run, known: Metadata, steps: list[int], returns: np.ndarray) -> dict[str, Any]:
    scores = normalised(returns.mean(-1), known)
    last, best = last_and_best(scores)
    several = {"best": best.to_json()} if len(steps) > 1 else {}
    mean_return = run.facts["config"]["mean_return"]
    return {
        "data": {"mean_return": mean_return, "score": float(normalised(np.array(mean_return), known))},
        "checkpoints": [
            {"steps": step, "returns": part.tolist(), **Summary.of(score).to_json()}
            for step, part, score in zip(steps, returns, scores, strict=True)
        ],
        "last": last.to_json(),
        **several,
    }


def _from_data(run: Run, policies: list[Policy], steps: int) -> dict[str, Any]:
    from trajstitch.benchmark.sources import reload_source
    from trajstitch.evaluation.off_policy import FittedQ, action_errors, estimated_returns, unseen
    from trajstitch.policies.train import divided

    if steps < 1:
        raise InputError(f"--estimate-steps must be at least 1, not {steps}")
    data = reload_source(run)
    learned, held = divided(data, run.facts["config"]["top"], run.facts["config"]["hold_out"])
    new = np.zeros(0, bool) if held is None else unseen(held, learned)
    errors = action_errors(policies, held, new) if held is not None and new.any() else action_errors(policies, learned)
    method = FittedQ(steps=steps)
    estimates, logged = estimated_returns(policies, data, method)
    return {
        "environment": None,
        "action_error": {"held_out": bool(new.any()), "repeated": int((~new).sum()), **errors},
        "estimate": {
            "method": "fitted-Q evaluation",
            "discount": method.discount,
            "discounted_return": Summary.of(estimates).to_json(),
            "data": logged,
        },
    }


def require_video(path: Path, metadata: Metadata) -> None:
    """Raise where a video of the data's environment can't be written."""
    needed = ("imageio",) if path.suffix.lower() == ".gif" else ("imageio", "imageio_ffmpeg")
    try:
        for name in needed:
            importlib.import_module(name)
    except ImportError as error:
        raise InputError('a video needs imageio with ffmpeg: pip install "trajstitch[video]"') from error
    environments.make(metadata).close()
    require_free(path, force=True)


def film(policy: Policy, metadata: Metadata, path: Path, seed: int = FIRST_SEED) -> float:
    """Write one episode as a video (mp4, or gif by its ending), and return its return."""
    require_video(path, metadata)
    import imageio

    environment = environments.make(metadata, render_mode="rgb_array")
    space = metadata.observation_space or environment.observation_space
    frames, total, ended = [], 0.0, False
    observation, _ = environment.reset(seed=seed)
    try:
        frames.append(environment.render())
    except Exception as error:  # whatever the graphics library says, it is the same to the user
        raise InputError(
            f"{environments.environment_id(metadata)} can't be drawn here ({type(error).__name__}: {error}): on a "
            "machine without a screen, set MUJOCO_GL=egl or MUJOCO_GL=osmesa and install its library"
        ) from error
    acted = environment.action_space
    while not ended:
        action = policy.act(flat(space, observation)[None]).reshape(acted.shape).astype(acted.dtype)
        observation, reward, terminated, truncated, _ = environment.step(action)
        total, ended = total + float(reward), terminated or truncated
        frames.append(environment.render())
    fps = environment.metadata.get("render_fps", 30)
    environment.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".gif":
        imageio.mimwrite(path, frames, duration=1000 / fps, loop=0)
    else:
        imageio.mimwrite(path, frames, fps=fps, macro_block_size=1)
    return total
