"""The data: trajectories as flat arrays and episode offsets.

An episode of T steps has T+1 observations, and the rows of `observations` for episode e start at `offsets[e] + e`. If
the state after an episode's last step was not recorded, its row is NaN in every column, and `next_known` is False at
that step: its action and reward count, but no model of the dynamics may learn from it.

Terminated and truncated are different things: nothing follows a termination, while after a truncation (a time limit, or
the end of the log) the episode went on unobserved.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium import Space
from jaxtyping import Bool, Float, Integer

from trajstitch.data import labels as labelling
from trajstitch.data import ragged, spaces
from trajstitch.data.labels import Labels
from trajstitch.errors import InputError

Verdict = Literal["ok", "note", "bad"]


@dataclass(frozen=True)
class Finding:
    """What one check found: `ok`, a `note` that a user should know, or `bad` data that no method should learn from."""

    check: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True)
class Metadata:
    """What is known about a data set in addition to its arrays."""

    name: str = "unnamed"
    """The data set's name, such as its Minari id or its file's name."""
    source: str = ""
    """The URI it was loaded from, or how it was made."""
    environment: str | None = None
    """EnvSpec (Gymnasium's, as JSON) of the environment that the data was collected in."""
    evaluation_environment: str | None = None
    """EnvSpec of the environment to evaluate in, if it is another one."""
    observation_space: Space | None = None
    """The original space, which may be nested; `spaces.unflatten` turns rows back into its observations."""
    action_space: Space | None = None
    """The original action space, with its bounds."""
    reference: tuple[float, float] | None = None
    """Returns of a random and of an expert policy, which get the scores 0 and 100."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Everything else that the format stores about the set (JSON values); saved with it again."""
    findings: tuple[Finding, ...] = ()
    """What the loader repaired or left out."""


@dataclass(frozen=True, eq=False)
class Provenance:
    """Where each step comes from: logged in the source data, or a stitched jump between two of its states."""

    source_episode: Integer[np.ndarray, " steps"]
    """Episode of the source data that the step's state was observed in."""
    source_step: Integer[np.ndarray, " steps"]
    """That state's index within the episode."""
    stitched: Bool[np.ndarray, " steps"]
    """True where the step is a jump with a synthetic action and reward."""
    margin: Float[np.ndarray, " steps"]
    """Log-likelihood of the jump minus that of the logged step (NaN where logged)."""
    value_gain: Float[np.ndarray, " steps"]
    """V(target of the jump) - V(logged next state) (NaN where logged)."""
    predicted_reward: Float[np.ndarray, " steps"]
    """Reward that the reward model predicts for the jump (NaN where logged)."""

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _frozen(getattr(self, item.name)))
            if getattr(self, item.name).shape != self.stitched.shape:
                raise InputError(f"provenance: {item.name} has another length than stitched")

    @classmethod
    def logged(cls, offsets: Integer[np.ndarray, " episodes_plus_1"]) -> "Provenance":
        """Return the provenance of data without jumps: every step is logged."""
        lengths = np.diff(offsets)
        nothing = np.full(offsets[-1], np.nan, np.float32)
        return cls(
            source_episode=ragged.owners(lengths).astype(np.int32),
            source_step=ragged.positions(lengths).astype(np.int32),
            stitched=np.zeros(offsets[-1], bool),
            margin=nothing,
            value_gain=nothing,
            predicted_reward=nothing,
        )

    def rows(self, index: Integer[np.ndarray, " rows"]) -> "Provenance":
        """Return the provenance of some of the steps."""
        return type(self)(**{item.name: getattr(self, item.name)[index] for item in fields(self)})


@dataclass(frozen=True, eq=False)
class Trajectories:
    """An immutable set of episodes. Shapes are checked here, contents by `checks.check`."""

    observations: Float[np.ndarray, "states observation"]
    actions: Float[np.ndarray, "steps action"]
    rewards: Float[np.ndarray, " steps"]
    terminated: Bool[np.ndarray, " steps"]
    truncated: Bool[np.ndarray, " steps"]
    offsets: Integer[np.ndarray, " episodes_plus_1"]
    metadata: Metadata = Metadata()
    provenance: Provenance | None = None
    labels: Labels | None = None

    def __post_init__(self) -> None:
        for name, rank, kinds in (
            ("observations", 2, "f"),
            ("actions", 2, "f"),
            ("rewards", 1, "f"),
            ("terminated", 1, "b"),
            ("truncated", 1, "b"),
            ("offsets", 1, "i"),
        ):
            array = _frozen(getattr(self, name))
            object.__setattr__(self, name, array)
            if array.ndim != rank:
                raise InputError(f"{name}: expected {rank} dimension(s), got shape {array.shape}")
            if array.dtype.kind not in kinds:
                wanted = {"f": "floating-point", "b": "boolean", "i": "integer"}[kinds]
                raise InputError(f"{name}: expected {wanted} values, got dtype {array.dtype}")
            if array.dtype.kind == "f" and array.dtype.itemsize > spaces.WIDEST:
                raise InputError(f"{name}: has dtype {array.dtype}, which few formats keep: save it as float64")
        steps, episodes = len(self.rewards), len(self.offsets) - 1
        if episodes < 1:
            raise InputError("the data set has no episodes")
        if self.offsets[0] != 0 or self.offsets[-1] != steps or (np.diff(self.offsets) < 0).any():
            raise InputError(f"offsets: must rise from 0 to the number of steps ({steps:,})")
        for name, length in (
            ("observations", steps + episodes),
            ("actions", steps),
            ("terminated", steps),
            ("truncated", steps),
        ):
            if len(getattr(self, name)) != length:
                raise InputError(
                    f"{name}: has {len(getattr(self, name)):,} rows, but {steps:,} steps in {episodes:,} "
                    f"episodes need {length:,}"
                )
        if self.provenance is not None and len(self.provenance.stitched) != steps:
            raise InputError(f"provenance: has {len(self.provenance.stitched):,} rows for {steps:,} steps")
        if self.labels is not None:
            self.labels.check(episodes, steps + episodes)

    def __repr__(self) -> str:
        from trajstitch.data.summary import three_lines

        return three_lines(self)

    # Sizes and indices

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.offsets) - 1

    @property
    def steps(self) -> int:
        """The number of transitions."""
        return len(self.rewards)

    @property
    def observation_size(self) -> int:
        return self.observations.shape[1]

    @property
    def action_size(self) -> int:
        return self.actions.shape[1]

    def episode_name(self, episode: int) -> str:
        """Return "episode 'lot 7'" by the log's own name, or "episode 3" by its number."""
        names = None if self.labels is None else self.labels.episodes
        return f"episode {episode}" if names is None else f"episode {str(names[episode])!r}"

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the provenance's."""
        arrays = (self.observations, self.actions, self.rewards, self.terminated, self.truncated)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def lengths(self) -> Integer[np.ndarray, " episodes"]:
        return _frozen(np.diff(self.offsets))

    @cached_property
    def episode_of_step(self) -> Integer[np.ndarray, " steps"]:
        return _frozen(ragged.owners(self.lengths))

    @cached_property
    def state_rows(self) -> Integer[np.ndarray, " steps"]:
        """Row of `observations` with each step's state; its next state is in the row after it."""
        return _frozen(np.arange(self.steps) + self.episode_of_step)

    @cached_property
    def first_rows(self) -> Integer[np.ndarray, " episodes"]:
        """Row of `observations` with each episode's first one."""
        return _frozen(self.offsets[:-1] + np.arange(len(self)))

    # States that were not recorded

    @cached_property
    def unknown_rows(self) -> Integer[np.ndarray, " unknown"]:
        """Rows of `observations` that stand for a final state that was not recorded: NaN in every column."""
        last = (self.first_rows + self.lengths)[self.lengths > 0]
        return _frozen(last[np.isnan(self.observations[last]).all(1)] if self.observation_size else last[:0])

    @cached_property
    def next_known(self) -> Bool[np.ndarray, " steps"]:
        """Whether each step's next state was recorded; only an episode's last step may lack it."""
        known = np.ones(self.steps, bool)
        known[np.searchsorted(self.state_rows, self.unknown_rows - 1)] = False
        return _frozen(known)

    @property
    def target_known(self) -> Bool[np.ndarray, " steps"]:
        """Whether values can learn from each step: its next state is known, or it terminated and nothing follows."""
        return self.next_known | self.terminated

    def filled(self) -> "Trajectories":
        """Return the data without NaN for unknown final states: each is replaced by the state before it.

        The data itself if there are none. `next_known` of the result is True everywhere: ask the data itself which
        steps models of the dynamics may learn from.
        """
        if not len(self.unknown_rows):
            return self
        observations = self.observations.copy()
        observations[self.unknown_rows] = observations[self.unknown_rows - 1]
        return replace(self, observations=observations)

    # Returns and ends

    @cached_property
    def returns(self) -> Float[np.ndarray, " episodes"]:
        """Undiscounted sum of rewards of each episode."""
        return _frozen(ragged.sums(self.rewards, self.lengths))

    @property
    def has_jumps(self) -> bool:
        """Whether any step is stitched."""
        return self.provenance is not None and bool(self.provenance.stitched.any())

    @cached_property
    def corrected_returns(self) -> Float[np.ndarray, " episodes"]:
        """The returns, with the costs that episodes cut off early have not paid."""
        from trajstitch.data.ranking import full_length, with_missing_costs

        longest = full_length(self.lengths, self.episode_terminated)
        usual = float(self.returns.sum()) / max(self.steps, 1)
        return _frozen(with_missing_costs(self.returns, self.lengths, self.episode_terminated, longest, usual))

    def discounted_returns(
        self, discount: float, after: Float[np.ndarray, " episodes"] | None = None
    ) -> Float[np.ndarray, " steps"]:
        """Return the discounted sum of rewards from each step to the end of its episode.

        `after` is each episode's value of what follows its last step, 0 if not given.
        """
        total, rewards = np.empty(self.steps), self.rewards.astype(np.float64)
        ends = np.zeros(len(self)) if after is None else np.asarray(after, np.float64)
        for start, stop, following in zip(self.offsets[:-1], self.offsets[1:], ends, strict=True):
            if stop > start:
                total[start:stop] = ragged.discounted_sums(rewards[start:stop], discount, following)
        return total

    @cached_property
    def last_of_episode(self) -> Bool[np.ndarray, " steps"]:
        """Whether each step is the last of its episode."""
        last = np.zeros(self.steps, bool)
        last[self.offsets[1:][self.lengths > 0] - 1] = True
        return _frozen(last)

    @cached_property
    def episode_terminated(self) -> Bool[np.ndarray, " episodes"]:
        """Whether each episode ends in a termination (False for an empty one)."""
        return _frozen(self._at_end(self.terminated))

    @cached_property
    def episode_truncated(self) -> Bool[np.ndarray, " episodes"]:
        return _frozen(self._at_end(self.truncated))

    def _at_end(self, flags: Bool[np.ndarray, " steps"]) -> Bool[np.ndarray, " episodes"]:
        ends = np.zeros(len(self), bool)
        filled = self.lengths > 0
        ends[filled] = flags[self.offsets[1:][filled] - 1]
        return ends

    # Choosing episodes

    def __getitem__(self, which: int | slice | Sequence[int] | np.ndarray) -> "Trajectories":
        """Return the chosen episodes in the given order; an integer gives a set of one episode."""
        episodes = np.atleast_1d(np.arange(len(self))[list(which) if isinstance(which, Sequence) else which])
        if len(episodes) == 0:
            raise InputError("the selection has no episodes")
        lengths = self.lengths[episodes]
        offsets = ragged.offsets_of(lengths)
        steps = ragged.rows_of(self.offsets[episodes], lengths)
        rows = ragged.rows_of(self.first_rows[episodes], lengths + 1)
        return replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            terminated=self.terminated[steps],
            truncated=self.truncated[steps],
            offsets=offsets,
            provenance=None if self.provenance is None else self.provenance.rows(steps),
            labels=None if self.labels is None else self.labels.take(episodes, rows),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all arrays but the provenance: data that differs in any bit has another fingerprint."""
        made = hashlib.blake2b(digest_size=8)
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "offsets"):
            array = np.ascontiguousarray(getattr(self, name))
            made.update(f"{name} {array.dtype} {array.shape}".encode())
            made.update(array.view(np.uint8).data if array.size else b"")
        return made.hexdigest()

    def __iter__(self) -> Iterator["Trajectories"]:
        return (self[episode] for episode in range(len(self)))

    def best(self, fraction: float) -> "Trajectories":
        """Return the best `fraction` of the episodes (rounded, at least one), in their original order.

        Of logged data those with the highest returns. Of stitched data those that achieve most beyond what is usual
        from such a start, with starts and states as varied as can be (`data/ranking.py`): where all trajectories are
        good, returns rank starts. Costs that cut-off trajectories have not paid count. Episodes without steps are last.
        """
        from trajstitch.data.ranking import KNOWN_TO, best_for_their_starts

        if not 0 < fraction <= 1:
            raise InputError(f"`fraction` must be above 0 and at most 1, not {fraction}")
        count = max(1, round(fraction * len(self)))
        filled = np.flatnonzero(self.lengths > 0)
        if not self.has_jumps or count > len(filled):
            returns = np.where(self.lengths > 0, self.corrected_returns, -np.inf)
            return self[np.sort(np.argsort(-returns, kind="stable")[:count])]
        assert self.provenance is not None
        starts, origin = self.observations[self.first_rows[filled]], self.provenance
        state = origin.source_episode * (int(origin.source_step.max()) + 1) + origin.source_step.astype(np.int64)
        visits = np.split(state, self.offsets[1:-1])
        visits = [visits[episode] for episode in filled]
        # A stitched return is known to a tenth: of two that are alike, the logged one is taken.
        stitched = ragged.sums(origin.stitched, self.lengths)[filled] > 0
        returns = self.corrected_returns[filled]
        returns = returns - np.where(stitched, KNOWN_TO * np.abs(returns), 0)
        return self[filled[best_for_their_starts(starts, returns, count, visits)]]

    def summary(self) -> dict[str, Any]:
        """Return sizes and the distribution of returns and lengths, as plain JSON values."""
        returns, lengths = self.returns, self.lengths
        spread = {
            name: {
                "mean": float(values.mean()),
                "std": float(values.std()),
                "min": float(values.min()),
                "median": float(np.median(values)),
                "max": float(values.max()),
            }
            for name, values in (("returns", returns), ("lengths", lengths))
        }
        stitched: dict[str, float] = {}
        if self.provenance is not None:
            stitched["stitched"] = int(self.provenance.stitched.sum())
        if self.has_jumps and not np.array_equal(self.corrected_returns, returns, equal_nan=True):
            stitched["corrected_mean_return"] = float(self.corrected_returns.mean())
        return {
            "name": self.metadata.name,
            "source": self.metadata.source,
            "episodes": len(self),
            "steps": self.steps,
            "observation_size": self.observation_size,
            "action_size": self.action_size,
            "bytes": self.nbytes,
            "terminated": int(self.episode_terminated.sum()),
            "truncated": int(self.episode_truncated.sum()),
            **({"final_state_unknown": len(self.unknown_rows)} if len(self.unknown_rows) else {}),
            **spread,
            "mean_reward": float(self.rewards.mean(dtype=np.float64)) if self.steps else 0.0,
            **stitched,
        }

    def equals(self, other: "Trajectories") -> bool:
        """Return whether both hold the same episodes, bit for bit; metadata and provenance are not compared."""
        return all(
            getattr(self, name).dtype == getattr(other, name).dtype
            and np.array_equal(getattr(self, name), getattr(other, name), equal_nan=name not in _FLAGS)
            for name in ("observations", "actions", "rewards", *_FLAGS)
        )


_FLAGS = ("terminated", "truncated", "offsets")


def concatenate(parts: Sequence[Trajectories]) -> Trajectories:
    """Return the episodes of several sets, in order, with the metadata of the first.

    Provenance is kept only if every part has it; its episode numbers stay those of each part's own source.
    """
    if not parts:
        raise InputError("there is nothing to concatenate: give at least one set")
    sizes = {(part.observation_size, part.action_size) for part in parts}
    if len(sizes) > 1:
        raise InputError(f"the sets differ in observation and action size: {sorted(sizes)}")
    provenances = [part.provenance for part in parts if part.provenance is not None]
    provenance = None
    if len(provenances) == len(parts):
        provenance = Provenance(
            **{
                item.name: np.concatenate([getattr(one, item.name) for one in provenances])
                for item in fields(Provenance)
            }
        )
    return Trajectories(
        observations=np.concatenate([part.observations for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        terminated=np.concatenate([part.terminated for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        offsets=ragged.offsets_of(np.concatenate([part.lengths for part in parts])),
        metadata=parts[0].metadata,
        provenance=provenance,
        labels=labelling.joined([part.labels for part in parts], [part.lengths for part in parts]),
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
