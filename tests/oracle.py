"""Algorithm 1, slow and obvious: one trajectory after the other, one step after the other.

It shares nothing with the engine but the words of the models on each pair of states, which it is given as tables.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trajstitch.data.trajectories import Trajectories


@dataclass
class Step:
    source: int
    target: int
    action: np.ndarray
    reward: float
    log_likelihood: np.float32
    """logmeanexp over the ensemble: what a jump in its place is compared with."""
    stitched: bool = False
    margin: float = np.nan
    value_gain: float = np.nan


@dataclass
class Path:
    start: int
    steps: list[Step]
    terminated: bool
    truncated: bool

    @property
    def nodes(self) -> list[int]:
        return [self.start, *(step.target for step in self.steps)]

    @property
    def total(self) -> float:
        total = 0.0
        for step in self.steps:
            total += float(step.reward)
        return total


@dataclass
class Oracle:
    data: Trajectories
    near: list[list[int]]
    low: np.ndarray
    """[u, w]: min over the ensemble of log p(w|u)."""
    mean: np.ndarray
    """[u, w]: logmeanexp over the ensemble."""
    consistency: np.ndarray
    margin: float | None
    most_consistency: float | None
    threshold: float
    max_jumps: int | None
    horizon: int

    def __post_init__(self) -> None:
        self.spread = float(self.data.returns.std())
        self.episode = [e for e, length in enumerate(self.data.lengths) for _ in range(length + 1)]

    def first_data(self) -> list[Path]:
        paths = []
        for number, episode in enumerate(self.data):
            row = int(self.data.first_rows[number])
            steps = [
                Step(
                    row + t, row + t + 1, episode.actions[t], float(episode.rewards[t]), self.mean[row + t, row + t + 1]
                )
                for t in range(episode.steps)
            ]
            paths.append(
                Path(row, steps, bool(self.data.episode_terminated[number]), bool(self.data.episode_truncated[number]))
            )
        return paths

    def terminal(self, node: int) -> bool:
        episode = self.episode[node]
        last = node == self.data.first_rows[episode] + self.data.lengths[episode]
        return bool(last and self.data.episode_terminated[episode])

    def candidates(self, paths: list[Path], step: Step) -> list[int]:
        found = set()
        for path in paths:
            for other in path.steps:
                if other.source in self.near[step.source]:
                    found.add(other.target)
            for node in path.nodes:
                if node in self.near[step.target]:
                    found.add(node)
        return sorted(node for node in found if self.episode[node] != self.episode[step.source] and node != step.target)

    def allowed(self, paths: list[Path], step: Step) -> list[int]:
        """The candidates that pass the jump tests."""
        allowed = []
        for node in self.candidates(paths, step):
            if self.margin is not None and not (
                self.low[step.source, node] > step.log_likelihood - np.float32(self.margin)
            ):
                continue
            if self.most_consistency is not None and not (self.consistency[step.source, node] <= self.most_consistency):
                continue
            allowed.append(node)
        return allowed

    def decision(self, paths: list[Path], step: Step, values: np.ndarray) -> int | None:
        allowed = self.allowed(paths, step)
        if not allowed:
            return None
        best = max(allowed, key=lambda node: (values[node], -node))
        return best if values[best] > values[step.target] else None

    def landing(self, paths: list[Path], node: int) -> tuple[int, int]:
        """(trajectory, position) that a jump to the node lands on."""
        visits = [
            (number, position)
            for number, path in enumerate(paths)
            for position, met in enumerate(path.nodes)
            if met == node
        ]
        going_on = [visit for visit in visits if visit[1] < len(paths[visit[0]].steps)]
        return (going_on or visits)[0]

    def walk(
        self,
        paths: list[Path],
        number: int,
        decision: Callable[[Step], int | None],
        gain: Callable[[int, int], float],
        synthesise: Callable[[int, int], tuple],
    ) -> Path:
        """Follow the decisions; `gain` is what a jump to the first node gains over a step to the second."""
        old = paths[number]
        new = Path(old.start, [], old.terminated, old.truncated)
        current, position = number, 0
        met = {old.start}
        while position < len(paths[current].steps):
            if len(new.steps) == self.horizon:
                new.terminated, new.truncated = False, True
                return new
            step = paths[current].steps[position]
            better = decision(step)
            if better is not None and better not in met:
                action, reward = synthesise(step.source, better)
                new.steps.append(
                    Step(
                        step.source,
                        better,
                        action,
                        float(reward),
                        self.mean[step.source, better],
                        stitched=True,
                        margin=self.low[step.source, better] - step.log_likelihood,
                        value_gain=gain(better, step.target),
                    )
                )
                met.add(better)
                current, position = self.landing(paths, better)
                if position == len(paths[current].steps):
                    new.terminated, new.truncated = self.terminal(better), not self.terminal(better)
            elif step.target in met:
                new.terminated, new.truncated = False, True
                return new
            else:
                new.steps.append(step)
                met.add(step.target)
                position += 1
                if position == len(paths[current].steps):
                    new.terminated, new.truncated = paths[current].terminated, paths[current].truncated
        return new

    def one_pass(
        self, paths: list[Path], values: np.ndarray, synthesise: Callable[[int, int], tuple]
    ) -> tuple[list[Path], int]:
        """D_{k+1}, and how many trajectories were replaced."""
        values = np.array([np.float32(0) if self.terminal(node) else values[node] for node in range(len(values))])
        result, accepted = [], 0
        for number, old in enumerate(paths):
            new = self.walk(
                paths,
                number,
                lambda step: self.decision(paths, step, values),
                lambda better, target: values[better] - values[target],
                synthesise,
            )
            kept = {id(step) for path in paths for step in path.steps}
            changes = sum(id(step) not in kept for step in new.steps)
            total, before = new.total, old.total
            if not new.terminated and len(new.steps) < len(old.steps):
                total += (len(old.steps) - len(new.steps)) * min(total / max(len(new.steps), 1), 0)
            if not old.terminated and len(old.steps) < len(new.steps):
                before += (len(new.steps) - len(old.steps)) * max(before / max(len(old.steps), 1), 0)
            accept = total > before + self.threshold * max(abs(before), self.spread)
            if self.max_jumps is not None and changes > self.max_jumps:
                accept = False
            result.append(new if accept else old)
            accepted += accept
        return result, accepted

    def diversified(
        self, paths: list[Path], draw: Callable[[int, int], float], synthesise: Callable[[int, int], tuple]
    ) -> list[Path]:
        """The trajectories, and then a walk of each logged one that differs from all of them.

        `draw` gives a number in [0, 1) for a walk (by its trajectory) that stands on a node.
        """
        logged, result = self.first_data(), list(paths)
        for number in range(len(logged)):

            def drawn(step: Step, number: int = number) -> int | None:
                choices = [*self.allowed(logged, step), None]
                return choices[int(draw(number, step.source) * len(choices))]

            new = self.walk(logged, number, drawn, lambda *_: np.nan, synthesise)
            changes = sum(step.stitched for step in new.steps)
            fits = self.max_jumps is None or changes <= self.max_jumps
            if changes and fits and all(new.nodes != path.nodes for path in paths):
                result.append(new)
        return result
