"""D_k: the trajectories of a pass, as visits to the states of the source data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Integer

from trajstitch.data import ragged
from trajstitch.data.labels import Labels, durations_of, usual_step
from trajstitch.data.trajectories import Provenance, Trajectories
from trajstitch.stitching.graph import Edges


@dataclass(frozen=True)
class Jumps:
    """The jumps that D_k makes, one a row: edges of the graph with the action and reward they were given."""

    edges: Edges
    margin: Float[np.ndarray, " jumps"]
    """Log-likelihood over that of the step the jump replaced."""
    value_gain: Float[np.ndarray, " jumps"]
    """V of the target less V of the next state that the jump replaced."""

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def reward(self) -> Float[np.ndarray, " jumps"]:
        assert self.edges.reward is not None
        return self.edges.reward

    @property
    def action(self) -> Float[np.ndarray, "jumps action"]:
        assert self.edges.action is not None
        return self.edges.action

    @classmethod
    def none(cls, action_size: int) -> "Jumps":
        """Return no jumps, for actions of this size."""
        node, number = np.zeros(0, np.int32), np.zeros(0, np.float32)
        return cls(Edges(node, node, {}, np.zeros((0, action_size), np.float32), number), number, number)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return every array by a name of its own."""
        return self.edges.arrays() | {"margin": self.margin, "value_gain": self.value_gain}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Jumps":
        """Return jumps from what `arrays` gave."""
        return cls(Edges.of(arrays), arrays["margin"], arrays["value_gain"])

    def take(self, index: Integer[np.ndarray, " some"]) -> "Jumps":
        return Jumps(self.edges.take(index), self.margin[index], self.value_gain[index])

    def followed_by(self, more: "Jumps") -> "Jumps":
        """Return these jumps and then the others."""
        return Jumps(
            Edges.concatenate((self.edges, more.edges)),
            np.concatenate((self.margin, more.margin)),
            np.concatenate((self.value_gain, more.value_gain)),
        )


@dataclass(frozen=True)
class Paths:
    """D_k: trajectories as visits to the source data's states. Rows and offsets are as in `Trajectories`.

    A step's kind is u if it is the step logged at node u, or else the number of nodes plus the jump's number.
    """

    data: Trajectories
    node: Integer[np.ndarray, " rows"]
    kind: Integer[np.ndarray, " steps"]
    offsets: Integer[np.ndarray, " episodes_plus_1"]
    terminated: Bool[np.ndarray, " episodes"]
    truncated: Bool[np.ndarray, " episodes"]
    jumps: Jumps

    @classmethod
    def of(cls, data: Trajectories) -> "Paths":
        """Return D_0: the data as it was logged."""
        return cls(
            data,
            node=np.arange(len(data.observations), dtype=np.int32),
            kind=data.state_rows.astype(np.int32),
            offsets=data.offsets,
            terminated=data.episode_terminated,
            truncated=data.episode_truncated,
            jumps=Jumps.none(data.action_size),
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
        return ragged.sums(self.rewards, self.lengths)

    def returns_by(self, rewards: Float[np.ndarray, " nodes"] | None) -> Float[np.ndarray, " episodes"]:
        """Return the returns where each logged step has the reward given for its node; the logged ones if None."""
        return ragged.sums(self.rewards_by(rewards), self.lengths)

    def rewards_by(self, rewards: Float[np.ndarray, " nodes"] | None) -> Float[np.ndarray, " steps"]:
        """Return each step's reward, where logged steps have the rewards given for their nodes; the logged ones if
        None."""
        return self.rewards if rewards is None else self._of_steps(rewards[self.data.state_rows], self.jumps.reward)

    def trajectories(self, *, provenance: bool = True) -> Trajectories:
        """Return D_k as a data set, with each step's provenance if wanted."""
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
            labels=self._labels(),
        )

    def _labels(self) -> Labels | None:
        """Return the names of the logged episodes that the trajectories start in, and the time each state is visited.

        A trajectory starts at its first state's time. A logged step takes as long as it took, a jump as long as usual.
        """
        data = self.data
        if data.labels is None:
            return None
        first = self.offsets[:-1] + np.arange(len(self.lengths))
        labels = data.labels.take(ragged.owners(data.lengths + 1)[self.node[first]], self.node)
        if labels.times is None or data.labels.times is None:
            return labels
        logged = durations_of(data.labels.times, data.state_rows)
        taken = self._of_steps(logged, np.full(len(self.jumps), usual_step(logged))).astype(labels.times.dtype)
        total = np.concatenate((taken[:0], [0], np.cumsum(taken))).astype(labels.times.dtype)  # one after the other
        passed = total[np.arange(len(self.node)) - ragged.owners(self.lengths + 1)]
        since = passed - np.repeat(total[self.offsets[:-1]], self.lengths + 1)
        times = np.repeat(labels.times[first], self.lengths + 1) + since
        changed = ragged.sums(self.kind >= self.nodes, self.lengths) > 0
        return replace(labels, times=np.where(np.repeat(changed, self.lengths + 1), times, labels.times))

    def _provenance(self) -> Provenance:
        data = self.data
        start = np.delete(self.node, self.offsets[1:] + np.arange(len(self.lengths)))
        episode = ragged.owners(data.lengths + 1).astype(np.int32)[start]
        before = data.provenance or Provenance.logged(data.offsets)  # steps stitched earlier stay marked
        # One final row for each episode before. Jumps may leave an episode's last state: it follows the last step's.
        ended = start == (data.first_rows + data.lengths)[episode]
        step = start - episode - ended
        return Provenance(
            source_episode=before.source_episode[step],
            source_step=before.source_step[step] + ended.astype(np.int32),
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
        """Return the source data's step behind each logged one."""
        step_of_node = np.zeros(self.nodes, np.int64)
        step_of_node[self.data.state_rows] = np.arange(self.data.steps)
        return step_of_node[self.kind[self.kind < self.nodes]]


def choose(old: Paths, new: Paths, accepted: Bool[np.ndarray, " episodes"]) -> Paths:
    """Return, trajectory by trajectory, the new one where accepted and else the old one."""
    lengths = np.where(accepted, new.lengths, old.lengths)
    offsets = ragged.offsets_of(lengths)
    node = np.empty(offsets[-1] + len(lengths), np.int32)
    kind = np.empty(offsets[-1], np.int32)
    for source, chosen in ((old, ~accepted), (new, accepted)):
        for extra, into, values in ((1, node, source.node), (0, kind, source.kind)):
            shift = np.arange(len(lengths)) * extra
            count = (lengths + extra)[chosen]
            here = ragged.rows_of((offsets[:-1] + shift)[chosen], count)
            into[here] = values[ragged.rows_of((source.offsets[:-1] + shift)[chosen], count)]
    return replace(
        old,
        node=node,
        kind=kind,
        offsets=offsets,
        terminated=np.where(accepted, new.terminated, old.terminated),
        truncated=np.where(accepted, new.truncated, old.truncated),
    )


def joined(old: Paths, new: Paths, added: Bool[np.ndarray, " episodes"]) -> Paths:
    """Return the old trajectories and then the new ones that are added. The new jumps begin with the old ones."""
    steps = np.repeat(added, new.lengths)
    rows = np.repeat(added, new.lengths + 1)
    return replace(
        new,
        node=np.concatenate((old.node, new.node[rows])),
        kind=np.concatenate((old.kind, new.kind[steps])),
        offsets=ragged.offsets_of(np.concatenate((old.lengths, new.lengths[added]))),
        terminated=np.concatenate((old.terminated, new.terminated[added])),
        truncated=np.concatenate((old.truncated, new.truncated[added])),
    )


def without_unused_jumps(paths: Paths) -> Paths:
    """Drop the jumps that no trajectory makes any more."""
    used, number = np.unique(paths.kind[paths.kind >= paths.nodes] - paths.nodes, return_inverse=True)
    kind = paths.kind.copy()
    kind[kind >= paths.nodes] = paths.nodes + number
    return replace(paths, kind=kind, jumps=paths.jumps.take(used))
