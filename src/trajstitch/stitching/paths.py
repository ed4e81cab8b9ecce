"""D_k: the trajectories of a pass, as visits to the states of the source data."""

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Bool, Float, Integer

from trajstitch.data.trajectories import Provenance, Trajectories


@dataclass(frozen=True)
class Jumps:
    """The jumps that D_k is made with, one a row."""

    source: Integer[np.ndarray, " jumps"]
    target: Integer[np.ndarray, " jumps"]
    mean: Float[np.ndarray, " jumps"]
    """logmeanexp over e of log p_e(target|source): the bar for who would replace the jump."""
    action: Float[np.ndarray, "jumps action"]
    reward: Float[np.ndarray, " jumps"]
    margin: Float[np.ndarray, " jumps"]
    """log-likelihood over that of the step the jump replaced."""
    value_gain: Float[np.ndarray, " jumps"]

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Paths:
    """D_k: trajectories as visits to the source data's states. Rows and offsets are as in `Trajectories`.

    A step's kind is u where it is the step logged at node u, or the number of nodes plus a jump's number.
    """

    data: Trajectories
    node: Integer[np.ndarray, " rows"]
    kind: Integer[np.ndarray, " steps"]
    offsets: Integer[np.ndarray, " episodes+1"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]
    jumps: Jumps

    @classmethod
    def of(cls, data: Trajectories) -> "Paths":
        """D_0."""
        nothing = np.zeros(0, np.float32)
        none = np.zeros(0, np.int32)
        return cls(
            data,
            node=np.arange(len(data.observations), dtype=np.int32),
            kind=data.state_rows.astype(np.int32),
            offsets=data.offsets,
            terminated=data.episode_terminated,
            truncated=data.episode_truncated,
            jumps=Jumps(none, none, nothing, np.zeros((0, data.action_size), np.float32), nothing, nothing, nothing),
        )

    @property
    def nodes(self) -> int:
        return len(self.data.observations)

    @property
    def lengths(self) -> Integer[np.ndarray, " episodes"]:
        return np.diff(self.offsets)

    @property
    def rewards(self) -> Float[np.ndarray, " steps"]:
        """Each step's reward, in double precision."""
        return self._of_steps(self.data.rewards, self.jumps.reward)

    @property
    def returns(self) -> Float[np.ndarray, " episodes"]:
        return sums(self.rewards, self.lengths)

    def trajectories(self, *, provenance: bool = True) -> Trajectories:
        """D_k as a data set, with each step's provenance unless it isn't asked for."""
        data = self.data
        actions = np.empty((len(self.kind), data.action_size), data.actions.dtype)
        stitched = self.kind >= self.nodes
        actions[~stitched] = data.actions[self._logged_steps()]
        actions[stitched] = self.jumps.action[self.kind[stitched] - self.nodes]
        ends = np.zeros((2, len(self.kind)), bool)
        filled = self.lengths > 0
        ends[:, self.offsets[1:][filled] - 1] = self.terminated[filled], self.truncated[filled]
        return replace(
            data,
            observations=data.observations[self.node],
            actions=actions,
            rewards=self.rewards.astype(data.rewards.dtype),
            terminated=ends[0],
            truncated=ends[1],
            offsets=self.offsets,
            provenance=self._provenance() if provenance else None,
        )

    def _provenance(self) -> Provenance:
        data = self.data
        start = np.delete(self.node, self.offsets[1:] + np.arange(len(self.lengths)))
        episode = np.repeat(np.arange(len(data), dtype=np.int32), data.lengths + 1)[start]
        before = data.provenance or Provenance.logged(data.offsets)  # stitched before, it is so still
        step = start - episode  # one final row for each episode before
        return Provenance(
            source_episode=before.source_episode[step],
            source_step=before.source_step[step],
            stitched=self._of_steps(before.stitched, np.ones(len(self.jumps))).astype(bool),
            margin=self._of_steps(before.margin, self.jumps.margin).astype(np.float32),
            value_gain=self._of_steps(before.value_gain, self.jumps.value_gain).astype(np.float32),
            predicted_reward=self._of_steps(before.predicted_reward, self.jumps.reward).astype(np.float32),
        )

    def _of_steps(self, logged: np.ndarray, jumps: np.ndarray) -> Float[np.ndarray, " steps"]:
        values = np.empty(len(self.kind))
        stitched = self.kind >= self.nodes
        values[~stitched] = logged[self._logged_steps()]
        values[stitched] = jumps[self.kind[stitched] - self.nodes]
        return values

    def _logged_steps(self) -> Integer[np.ndarray, " logged"]:
        """The source data's step behind each logged one: its node less one final row for each episode before."""
        step_of_node = np.zeros(self.nodes, np.int64)
        step_of_node[self.data.state_rows] = np.arange(self.data.steps)
        return step_of_node[self.kind[self.kind < self.nodes]]


def choose(old: Paths, new: Paths, accepted: Bool[np.ndarray, " episodes"]) -> Paths:
    """Trajectory by trajectory, the new one where accepted."""
    lengths = np.where(accepted, new.lengths, old.lengths)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    node = np.empty(offsets[-1] + len(lengths), np.int32)
    kind = np.empty(offsets[-1], np.int32)
    for source, chosen in ((old, ~accepted), (new, accepted)):
        for extra, into, values in ((1, node, source.node), (0, kind, source.kind)):
            shift = np.arange(len(lengths)) * extra
            count = (lengths + extra)[chosen]
            inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            here = np.repeat((offsets[:-1] + shift)[chosen], count) + inside
            into[here] = values[np.repeat((source.offsets[:-1] + shift)[chosen], count) + inside]
    return replace(
        old,
        node=node,
        kind=kind,
        offsets=offsets,
        terminated=np.where(accepted, new.terminated, old.terminated),
        truncated=np.where(accepted, new.truncated, old.truncated),
    )


def without_idle_jumps(paths: Paths) -> Paths:
    """Forget the jumps that no trajectory makes any more."""
    used, number = np.unique(paths.kind[paths.kind >= paths.nodes] - paths.nodes, return_inverse=True)
    kind = paths.kind.copy()
    kind[kind >= paths.nodes] = paths.nodes + number
    jumps = Jumps(*(getattr(paths.jumps, item.name)[used] for item in fields(Jumps)))
    return replace(paths, kind=kind, jumps=jumps)


def sums(values: Float[np.ndarray, " steps"], lengths: Integer[np.ndarray, " episodes"]) -> np.ndarray:
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths), values, minlength=len(lengths))
