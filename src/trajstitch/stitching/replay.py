"""Replay: where a walk truly goes, and the rewards that it would miss.

A jump lands beside its target, and where its actions are replayed, the walk goes on beside the states that it visits.
That costs little, except where a reward has a boundary, such as a goal's. Logged episodes end as soon as they are
inside, so a walk that is off by a part of a step passes by, and claims what its actions don't get.

So a walk with such a reward is replayed by each member f_e of the forward ensemble, relative to the states it visits:

    δ' = δ + f_e(s + δ, a) − f_e(s, a) + m,    m = s + f_e(s, a) − ŝ' for a jump to ŝ', and 0 for a logged step

Logged steps led where they led, so what a member misses on them doesn't count, and a logged episode is replayed as it
was. Where within a step its reward begins, the log does not tell. The member's predicted reward r_e rises along the
walk from the step before; the share of this rise by which it differs at s + δ is the chance to miss the reward:

    p = max over e of |r_e(s + δ, a) − r_e(s, a)| / (r_e(s, a) − r_e(s before, a before))

For a jump p is at least δ' over its length, since the reward is paid at ŝ'. A walk ends, truncated, before the first
reward of which it would lose more than a tenth of what it gains. The steps until there are as good to learn from: a
clone loses nothing. A walk that is then worse than its trajectory does not replace it.

Only a single reward that is so large can be lost; where returns are sums of many small ones, nothing is replayed.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer

from trajstitch.data import ragged
from trajstitch.learning.compiled import compiled
from trajstitch.models.forward import Forward, ForwardEnsemble
from trajstitch.stitching.acceptance import Proposal
from trajstitch.stitching.graph import EdgeScorer
from trajstitch.stitching.paths import Paths

BLOCK = 64
"""Walks that are replayed at once."""
TINY = 1e-9


@dataclass(frozen=True)
class Replay:
    """Replays walks over a data set's states."""

    ensemble: ForwardEnsemble
    states: Float[Array, "rows size"]
    """Every node's state, on the device."""
    actions: Float[np.ndarray, "nodes action"]
    """The action logged at each node."""
    horizon: int
    """Steps of the longest walk."""

    @classmethod
    def of(cls, scorer: EdgeScorer, horizon: int) -> "Replay | None":
        """Return a replay by the forward ensemble of the jump tests; None if they have none."""
        for model in scorer.models.tests.values():
            if isinstance(model, ForwardEnsemble):
                return cls(model, scorer.states, scorer.actions, horizon)
        return None

    def chances(self, paths: Paths, episodes: Integer[np.ndarray, " some"]) -> list[Float[np.ndarray, " steps"]]:
        """Return for each step of these trajectories the chance that its reward is missed."""
        found = []
        for start in range(0, len(episodes), BLOCK):
            some = episodes[start : start + BLOCK]
            found += zip(self._chances(paths, np.resize(some, BLOCK)), paths.lengths[some], strict=False)
        return [chances[:length] for chances, length in found]

    def _chances(self, paths: Paths, episodes: Integer[np.ndarray, " block"]) -> Float[np.ndarray, "block steps"]:
        time = np.minimum(np.arange(self.horizon + 1), paths.lengths[episodes, None])
        node = paths.node[paths.offsets[episodes, None] + episodes[:, None] + time]
        step = paths.offsets[episodes, None] + np.minimum(time[:, :-1], paths.lengths[episodes, None] - 1)
        kind = paths.kind[step]
        jump = kind >= paths.nodes
        action = self.actions[np.where(jump, 0, kind)]
        action[jump] = paths.jumps.action[kind[jump] - paths.nodes]
        with jax.default_matmul_precision("highest"):
            steps = map(jnp.asarray, (node, action, jump))
            return np.asarray(_replayed(self.ensemble, self.states, *steps))


@compiled
def _replayed(ensemble: ForwardEnsemble, states: Array, node: Array, action: Array, jump: Array) -> Array:
    """Return the chance to miss each step's reward, by the worst member."""
    # Columns that actions don't control, or that the ensemble can't predict, go as they went.
    weight, std = ensemble.weight, ensemble.members.observation.std[0]

    def far(change: Array) -> Array:
        return jnp.sqrt((weight * jnp.square(change / std)).sum(-1))

    def chances(model: Forward) -> Array:
        def one_step(carried: tuple[Array, Array], step: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
            (beside, before), (here, there, action, jumps) = carried, step
            here, there = states[here], states[there]
            (change, reward), (own_change, own_reward) = model(here + beside, action), model(here, action)
            missed = jnp.where(jumps[:, None], here + own_change - there, 0)
            beside = jnp.where(weight > 0, beside + change - own_change + missed, 0)
            chance = jnp.abs(reward - own_reward) / jnp.maximum(own_reward - before, TINY)
            off = far(beside) / jnp.maximum(far(there - here), TINY)
            chance = jnp.where(jumps, jnp.maximum(chance, off), chance)
            return (beside, own_reward), jnp.minimum(chance, 1)

        steps = jax.tree.map(lambda part: jnp.swapaxes(part, 0, 1), (node[:, :-1], node[:, 1:], action, jump))
        start = jnp.zeros((len(node), states.shape[1])), jnp.full(len(node), -jnp.inf)
        return jax.lax.scan(one_step, start, steps)[1].T

    return eqx.filter_vmap(chances)(ensemble.members).max(0)


def beyond_doubt(
    replay: Replay, old: Paths, new: Proposal, share: float, rewards: Float[np.ndarray, " nodes"] | None = None
) -> tuple[Integer[np.ndarray, " episodes"], Bool[np.ndarray, " episodes"]]:
    """Return how many steps each new trajectory keeps, and which are accepted with these.

    A walk may lose this share of what it gains; or of its trajectory's return, or of the spread of all returns, if that
    is more. `rewards` counts instead of the logged reward at each node.
    """
    paths, accepted, lengths = new.paths, new.accepted.copy(), new.paths.lengths.copy()
    if not accepted.any():
        return lengths, accepted
    old_return, new_return = old.returns_by(rewards), paths.returns_by(rewards)
    stake = np.maximum(new_return - old_return, np.maximum(np.abs(old_return), old.data.returns.std()))
    may_lose = share * stake
    paid, owner = paths.rewards_by(rewards), ragged.owners(lengths)
    before = np.append(0, paid[:-1])
    before[paths.offsets[:-1][lengths > 0]] = old.rewards_by(rewards).mean()  # what is usual, before the first step
    rise = paid - before
    jumps = np.cumsum(paths.kind >= paths.nodes)
    jumped = jumps > np.append(0, jumps)[paths.offsets[owner]]
    large = accepted[owner] & jumped & (rise > may_lose[owner])
    asked = np.unique(owner[large])
    for episode, chances in zip(asked, replay.chances(paths, asked), strict=True):
        first = paths.offsets[episode]
        steps = slice(first, first + lengths[episode])
        lost = np.flatnonzero(large[steps] & (chances * rise[steps] > may_lose[episode]))
        if not len(lost):
            continue
        lengths[episode] = lost[0]
        kept = slice(first, first + lost[0])
        accepted[episode] = (paths.kind[kept] >= paths.nodes).any()
        accepted[episode] &= paid[kept].sum() >= old_return[episode] - may_lose[episode]
    return lengths, accepted
