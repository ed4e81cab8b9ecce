"""Jump tests: what a jump must pass before its value counts.

A test is a frozen config that is part of `StitchConfig.tests`. It learns a model from the data (`fit`), scores jumps by
that model (`score`) and says which scores pass (`passes`). Edges of the graph carry the scores by name. A new test is
one file that implements `JumpTest` and one line in a preset.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.compiled import compiled
from trajstitch.learning.fit_report import FitReport
from trajstitch.learning.losses import log_density
from trajstitch.models.dynamics import Dynamics, Gaussian, fit_dynamics, untrained_dynamics
from trajstitch.models.forward import ForwardDynamics, ForwardEnsemble, fit_forward, score_steps, untrained_forward
from trajstitch.models.inverse import Inverse
from trajstitch.stitching.nearby import Nearby

Nodes = Integer[np.ndarray, " pairs"]
Scores = dict[str, Float[np.ndarray, " pairs"]]
"""A number for each jump, by the score's name."""

BLOCK = 16_384
"""Source states whose predictions are held at once."""
PAIRS = 65_536
"""Pairs whose likelihood is computed at once."""


@dataclass(frozen=True)
class Candidates:
    """Jumps to be scored: pairs of nodes. A pair's scores do not depend on the pairs scored with it."""

    states: Float[Array, "nodes size"]
    """Every node's state, on the device."""
    source: Nodes
    target: Nodes
    replaced: Nodes
    """The next state that was logged, or the target where none was."""
    inverse: Inverse
    """Predicts a jump's action."""
    scores: Scores = field(default_factory=dict)
    """The scores so far."""
    action: Float[np.ndarray, "pairs action"] | None = None
    """Each jump's most plausible action (latent 0), once a test has asked for it."""
    nearby: Nearby | None = None
    """The logged steps at and near each node, if they are known."""

    def __len__(self) -> int:
        return len(self.source)

    def take(self, index: Integer[np.ndarray, " some"]) -> "Candidates":
        """Return some of the candidates, with their scores."""
        return replace(
            self,
            source=self.source[index],
            target=self.target[index],
            replaced=self.replaced[index],
            scores={name: values[index] for name, values in self.scores.items()},
            action=None if self.action is None else self.action[index],
        )

    def with_actions(self) -> "Candidates":
        """Return the candidates with their actions predicted."""
        if self.action is not None:
            return self
        action = in_batches(lambda *pair: _actions(self.inverse, self.states, *pair), self.source, self.target)
        return replace(self, action=action)


@runtime_checkable
class JumpTest(Protocol):
    """What a test must do. `model` is what its `fit` returned: an `equinox.Module`, saved and loaded by its leaves."""

    def fit(self, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles) -> tuple[Any, FitReport | None]:
        """Learn from the data what scoring needs; report how well on held-out steps, or None if nothing is fitted."""
        ...

    def untrained(self, data: Trajectories, key: PRNGKeyArray) -> Any:
        """Return a model of the shapes that `fit` gives, to read a saved one into."""
        ...

    def score(self, model: Any, candidates: Candidates) -> Candidates:
        """Return the candidates with this test's scores added (and their actions, if it needs them)."""
        ...

    def score_logged(self, model: Any, steps: Candidates) -> Scores:
        """Return the scores of logged steps that jumps are compared with in `passes`; {} if none are."""
        ...

    def passes(self, scores: Scores, replaced: Scores) -> Bool[np.ndarray, " pairs"]:
        """Return which jumps pass, given their scores and those (by `score_logged`) of the steps they replace."""
        ...


@dataclass(frozen=True)
class Likelihood:
    """The paper's test: the jump must be as likely under p(s'|s) as the step it replaces, less a margin.

    Scores: `log_likelihood`, the lowest log p_e(ŝ'|s) of the ensemble, and `mean_log_likelihood`, their logmeanexp.
    """

    dynamics: Dynamics = field(default_factory=Dynamics)
    """The ensemble for p(s'|s)."""
    margin: Annotated[float, Bounds()] | None = 0.0
    """How far a jump's lowest log-likelihood may fall below the mean log-likelihood of the step it replaces, in nats.
    Larger lets more jumps through; the paper's is 0; None scores jumps without testing them."""

    def fit(self, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles) -> tuple[Gaussian, FitReport]:
        return fit_dynamics(self.dynamics, data, key)

    def untrained(self, data: Trajectories, key: PRNGKeyArray) -> Gaussian:
        return untrained_dynamics(self.dynamics, data.observation_size, key)

    def score(self, model: Gaussian, candidates: Candidates) -> Candidates:
        low, mean = _log_likelihoods(model, candidates)
        scores = {"log_likelihood": low, "mean_log_likelihood": mean}
        return replace(candidates, scores={**candidates.scores, **scores})

    def score_logged(self, model: Gaussian, steps: Candidates) -> Scores:
        return {"mean_log_likelihood": _log_likelihoods(model, steps)[1]}

    def passes(self, scores: Scores, replaced: Scores) -> Bool[np.ndarray, " pairs"]:
        low = scores["log_likelihood"]
        if self.margin is None:
            return np.ones(len(low), bool)
        return low > replaced["mean_log_likelihood"] - np.float32(self.margin)


def likelihood_margin(scores: Scores, replaced: Scores, count: int) -> Float[np.ndarray, " pairs"]:
    """Return each jump's log-likelihood over that of the step it replaces; NaN where likelihoods are not scored."""
    if "log_likelihood" not in scores:
        return np.full(count, np.nan, np.float32)
    return scores["log_likelihood"] - replaced["mean_log_likelihood"]


@dataclass(frozen=True)
class Consistency:
    """The jump's action must lead to its target: an ensemble f(s, a) predicts by how much it misses.

    Scores: `consistency`, the worst member's error over the jump's length, beyond what is usual on logged steps, or
    that of the logged steps nearby, if it is larger; `error`, the jump's own, in standardised states; `lowest_reward`,
    the lowest reward that a member predicts. Logged steps are scored by `error` and `length`.
    """

    forward: ForwardDynamics = field(default_factory=ForwardDynamics)
    """The ensemble for f(s, a)."""
    limit: Annotated[float, Bounds(0)] | None = 0.2
    """Largest share of the jump's length that its action may miss the target by, beyond what the ensemble misses on
    held-out logged steps. Larger lets more jumps through; None scores jumps without testing them."""

    def fit(self, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles) -> tuple[ForwardEnsemble, FitReport]:
        model, report = fit_forward(self.forward, data, key, roles)
        if self.limit is not None:
            most = math.hypot(self.limit, float(model.usual))
            report = replace(report, metrics={**report.metrics, "jumps_may_miss": most})
        return model, report

    def untrained(self, data: Trajectories, key: PRNGKeyArray) -> ForwardEnsemble:
        return untrained_forward(self.forward, data.observation_size, data.action_size, key)

    def score(self, model: ForwardEnsemble, candidates: Candidates) -> Candidates:
        candidates = candidates.with_actions()
        assert candidates.action is not None
        found = in_batches(
            lambda *step: _score_steps(model, candidates.states, *step),
            candidates.source,
            candidates.target,
            candidates.replaced,
            candidates.action,
        )
        error, length, reward = found
        beyond = _beyond(error, length, float(model.usual))
        nearby = candidates.nearby
        if nearby is not None and nearby.error is not None:
            # Where logged steps did not go as predicted, such as at a wall, a jump may not either.
            beyond = np.maximum(beyond, _beyond(nearby.error[candidates.source], length, nearby.usual))
        scores = {"consistency": np.sqrt(beyond), "error": error, "lowest_reward": reward}
        return replace(candidates, scores={**candidates.scores, **scores})

    def score_logged(self, model: ForwardEnsemble, steps: Candidates) -> Scores:
        assert steps.action is not None
        found = in_batches(
            lambda *step: _score_steps(model, steps.states, *step),
            steps.source,
            steps.target,
            steps.replaced,
            steps.action,
        )
        return {"error": found[0], "length": found[1]}

    def passes(self, scores: Scores, replaced: Scores) -> Bool[np.ndarray, " pairs"]:
        found = scores["consistency"]
        return np.ones(len(found), bool) if self.limit is None else found <= self.limit


def _log_likelihoods(model: Gaussian, pairs: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the mean log-likelihood of each pair. The networks see each source once."""
    source, target = pairs.source, pairs.target
    order = np.argsort(source, kind="stable")
    sources, starts = np.unique(source[order], return_index=True)
    starts = np.append(starts, len(source))
    low, mean = np.empty(len(source), np.float32), np.empty(len(source), np.float32)
    for first in range(0, len(sources), BLOCK):
        nodes = sources[first : first + BLOCK]
        moments = in_batches(lambda rows: _moments(model, pairs.states, rows), nodes)
        padded = [jnp.asarray(np.resize(part, (BLOCK, *part.shape[1:]))) for part in moments]
        last = min(first + BLOCK, len(sources))
        some = order[starts[first] : starts[last]]
        local = np.repeat(np.arange(last - first), np.diff(starts[first : last + 1])).astype(np.int32)
        low[some], mean[some] = in_batches(
            lambda *at, padded=padded: _densities(model.change, pairs.states, *padded, *at),
            local,
            source[some],
            target[some],
            rows=PAIRS,
        )
    return low, mean


def _beyond(
    error: Float[np.ndarray, " pairs"], length: Float[np.ndarray, " pairs"], usual: float
) -> Float[np.ndarray, " pairs"]:
    """Return the square of errors over lengths, beyond what is usual."""
    return np.maximum(np.square(error / np.maximum(length, 1e-6)) - usual**2, 0)


@compiled
def _moments(models: Gaussian, states: Array, rows: Array) -> tuple[Array, Array]:
    return eqx.filter_vmap(lambda model: model(states[rows]), out_axes=1)(models)


@compiled
def _densities(
    change: Normaliser, states: Array, mean: Array, log_std: Array, local: Array, source: Array, target: Array
) -> tuple[Array, Array]:
    one = Normaliser.apply(jax.tree.map(lambda leaf: leaf[0], change), states[target] - states[source])
    each = log_density(one[:, None], mean[local], log_std[local])
    return each.min(1), jax.nn.logsumexp(each, axis=1) - math.log(each.shape[1])


@compiled
def _actions(inverse: Inverse, states: Array, source: Array, target: Array) -> Array:
    return inverse(states[source], states[target])


@compiled
def _score_steps(
    model: ForwardEnsemble, states: Array, source: Array, target: Array, replaced: Array, action: Array
) -> tuple[Array, ...]:
    found = score_steps(model, states[source], action, states[target], states[replaced])
    return found.error, found.length, found.reward
