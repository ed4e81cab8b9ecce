"""Small random data sets for property tests, with the corner cases that formats tend to lose."""

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict
from hypothesis import strategies as st

from trajstitch.data import spaces
from trajstitch.data.environments import spec_json
from trajstitch.data.trajectories import Metadata, Provenance, Trajectories

FLOATS = (np.float32, np.float64)
ENDS = ("terminated", "truncated", "neither", "both")
AWKWARD = (0.0, -0.0, 1 / 3, -1e-30, 1e30, 65504.0)
"""Values that a detour through text, another dtype or a wrong comparison would change."""


@st.composite
def trajectories(
    draw: st.DrawFn,
    *,
    dtypes: tuple[Any, ...] = FLOATS,
    nested: bool = True,
    ends: tuple[str, ...] = ENDS,
    empty_episodes: bool = False,
    longest: int = 5,
) -> Trajectories:
    """A set of 1 to 6 episodes of up to `longest` steps, whose flags are set at episode ends only.

    Of all, some or none of them the state after the last step is unknown.
    """
    lengths = draw(st.lists(st.integers(0 if empty_episodes else 1, longest), min_size=1, max_size=6))
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    steps, episodes = int(offsets[-1]), len(lengths)
    observation_space = draw(observation_spaces(dtypes=dtypes, nested=nested))
    action_space = draw(boxes(dtypes=dtypes, low=-1.0, high=1.0))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terminated, truncated = np.zeros(steps, bool), np.zeros(steps, bool)
    for length, stop in zip(lengths, offsets[1:], strict=True):
        end = draw(st.sampled_from(ends))
        if length:
            terminated[stop - 1] = end in ("terminated", "both")
            truncated[stop - 1] = end in ("truncated", "both")
    observations = _sample(observation_space, steps + episodes, random)
    unknown = (np.array(lengths) > 0) & (random.random(episodes) < draw(st.sampled_from((0, 0, 0.5, 1))))
    observations[(offsets[1:] + np.arange(episodes))[unknown]] = np.nan
    return Trajectories(
        observations=observations,
        actions=random.uniform(-1, 1, (steps, spaces.flat_size(action_space))).astype(action_space.dtype),
        rewards=random.normal(size=steps).astype(draw(st.sampled_from(dtypes))),
        terminated=terminated,
        truncated=truncated,
        offsets=offsets,
        metadata=draw(metadatas(observation_space, action_space)),
        provenance=_provenance(offsets, random) if draw(st.booleans()) else None,
    )


@st.composite
def observation_spaces(draw: st.DrawFn, *, dtypes: tuple[Any, ...] = FLOATS, nested: bool = True) -> Space:
    """A vector, a box of another rank or, where `nested`, a Dict of Dicts of them whose dtypes may differ."""
    box = boxes(dtypes=dtypes)
    if not nested or draw(st.booleans()):
        return draw(box)
    names = st.sampled_from(("observation", "achieved_goal", "desired_goal", "z", "a"))

    def dicts(parts: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[Dict]:
        return st.dictionaries(names, parts, min_size=1, max_size=most).map(lambda named: Dict(named))  # pyright: ignore[reportArgumentType]

    return draw(dicts(box | dicts(box, 2), 3))


@st.composite
def boxes(draw: st.DrawFn, *, dtypes: tuple[Any, ...] = FLOATS, low: float = -np.inf, high: float = np.inf) -> Box:
    shape = draw(st.sampled_from(((1,), (3,), (2, 3), (1, 1, 2))))
    return Box(low, high, shape, draw(st.sampled_from(dtypes)))


@st.composite
def metadatas(draw: st.DrawFn, observation_space: Space, action_space: Space) -> Metadata:
    return Metadata(
        name="strategies/example-v0",
        environment=draw(st.sampled_from((None, spec_json("Hopper-v5")))),
        evaluation_environment=draw(st.sampled_from((None, spec_json("Walker2d-v4")))),
        observation_space=observation_space,
        action_space=action_space,
        reference=draw(st.sampled_from((None, (-20.272305, 3234.3)))),
        extra=draw(
            st.sampled_from(({}, {"author": ["Ada"], "algorithm_name": "TD3 × noise", "requirements": ["mujoco<3.5"]}))
        ),
    )


def _sample(space: Space, rows: int, random: np.random.Generator) -> np.ndarray:
    """Rows of the space: normal values with some awkward ones among them, each exact in its own leaf's dtype."""

    def leaf(box: Box) -> np.ndarray:
        values = random.normal(size=(rows, *box.shape))
        awkward = random.random(values.shape) < 0.1
        values[awkward] = random.choice(AWKWARD, awkward.sum())
        limit = float(np.finfo(np.dtype(box.dtype)).max)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return values.clip(-limit, limit).astype(box.dtype)

    def nest(part: Space) -> Any:
        return {name: nest(inner) for name, inner in part.spaces.items()} if isinstance(part, Dict) else leaf(part)  # pyright: ignore[reportArgumentType]

    return spaces.flatten(space, nest(space))


def _provenance(offsets: np.ndarray, random: np.random.Generator) -> Provenance:
    steps = int(offsets[-1])
    stitched = random.random(steps) < 0.5
    numbers = np.where(stitched, random.normal(size=(3, steps)), np.nan).astype(np.float32)
    return Provenance(
        source_episode=random.integers(0, 1000, steps).astype(np.int32),
        source_step=random.integers(0, 1000, steps).astype(np.int32),
        stitched=stitched,
        margin=numbers[0],
        value_gain=numbers[1],
        predicted_reward=numbers[2],
    )
