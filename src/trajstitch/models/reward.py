"""The reward of a step (s, a, s'): a regression, or the paper's conditional Wasserstein GAN.

The regression has two members, and each is fitted to one half of the episodes. So every logged step can be predicted
by a member that has not seen it (`crossed`): otherwise a network learns the noise in the rewards by heart, and a plan
takes it for real. It also sees whether the step terminates its episode: rewards at a goal or a fall are unlike others.
"""

from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Integer, PRNGKeyArray

from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import FEWEST_EPISODES, Transitions, hold_out
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.compiled import compiled
from trajstitch.learning.fit import Metrics, Objective, stack
from trajstitch.learning.fit_report import FitReport, explained
from trajstitch.learning.networks import MLP, change_normaliser_of, normaliser_of
from trajstitch.models.fitting import fit_one, limited

HALVES = 2
MIN_T = 2.0
"""By how many standard errors the mean gain of an episode must exceed 0 for the model to beat its baseline."""


class Reward(eqx.Module):
    """The predictor, and the GAN's critic if there is one. Fitted ones are stacked: two members, or one GAN."""

    observation: Normaliser
    action: Normaliser
    change: Normaliser
    reward: Normaliser
    generator: MLP
    critic: MLP | None
    latent_size: Annotated[int, Bounds(1)] = eqx.field(static=True)
    sees_end: bool = eqx.field(static=True)
    """Whether it sees that a step terminates its episode."""

    def __call__(
        self,
        observation: Float[Array, "*rows size"],
        action: Float[Array, "*rows action"],
        next_observation: Float[Array, "*rows size"],
        terminated: Bool[Array, "*rows"],
        latent: Float[Array, "*rows latent"] | None = None,
    ) -> Float[Array, "*rows"]:
        """Return the step's reward; without a latent, at the latent's mean."""
        step = self.step(observation, action, next_observation, terminated)
        return self.reward.undo(self.generate(step, latent))[..., 0]

    def step(
        self, observation: Array, action: Array, next_observation: Array, terminated: Array
    ) -> Float[Array, "*rows features"]:
        parts = (
            self.observation.apply(observation),
            self.action.apply(action),
            self.change.apply(next_observation - observation),
        )
        return jnp.concatenate((*parts, terminated[..., None]) if self.sees_end else parts, -1)

    def generate(self, step: Float[Array, "*rows features"], latent: Array | None) -> Float[Array, "*rows 1"]:
        """Return the standardised reward."""
        latent = jnp.zeros((*step.shape[:-1], self.latent_size)) if latent is None else latent
        return self.generator(jnp.concatenate((step, latent), -1))


@dataclass(frozen=True)
class RegressionReward:
    """Reward by regression: mean squared error."""

    hidden: Annotated[tuple[int, ...], Bounds(1)] = (512, 512)
    """Widths of the hidden layers."""
    learning_rate: Annotated[float, Bounds(0)] = 3e-4
    """Adam's step size."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Steps in a batch."""
    steps: Annotated[int, Bounds(1)] = 100_000
    """Gradient steps of each member at most; the parameters with the lowest error on the other half are kept."""
    epochs: Annotated[int, Bounds(1)] | None = None
    """Passes over the training steps at most, so that little data takes little time; None: any number."""

    def init(self, key: PRNGKeyArray, data: Trajectories) -> Reward:
        return _init(key, data, self.hidden, latent_size=0, critic=False, sees_end=True)

    def untrained(self, key: PRNGKeyArray, data: Trajectories) -> Reward:
        """Return members of the shapes that `fit_reward` gives, to read trained ones into."""
        return stack([self.init(key, data)] * HALVES)

    def loss(self, model: Reward, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        step = model.step(batch.observation, batch.action, batch.next_observation, batch.terminated)
        found = model.generate(step, None)
        error = jnp.square(found - model.reward.apply(batch.reward[:, None])).mean()
        return error, {"reward_error": error}

    def objectives(self) -> tuple[Objective, ...]:
        return (Objective(self.loss, optax.adam(self.learning_rate), lambda model: model.generator),)


@dataclass(frozen=True)
class GenerativeReward:
    """Reward by a conditional Wasserstein GAN.

    The paper does not say how its critic is kept Lipschitz; here its slope in the reward is penalised (WGAN-GP).
    """

    hidden: Annotated[tuple[int, ...], Bounds(1)] = (512, 512)
    """Widths of the hidden layers."""
    latent_size: Annotated[int, Bounds(1)] = 2
    """Dimensions of the generator's noise."""
    learning_rate: Annotated[float, Bounds(0)] = 1e-4
    """Adam's step size, with betas of 0.5 and 0.999."""
    decay: Annotated[float, Bounds(0)] = 1e-4
    """L2 regularisation of the critic."""
    critic_steps: Annotated[int, Bounds(1)] = 5
    """Critic steps for each generator step."""
    slope_penalty: Annotated[float, Bounds(0)] = 10.0
    """Weight of the gradient penalty: the critic's squared distance from slope 1."""
    batch_size: Annotated[int, Bounds(1)] = 256
    """Steps in a batch."""
    steps: Annotated[int, Bounds(1)] = 200_000
    """Critic steps."""
    held_out: Annotated[float, Bounds(0, below=1)] = 0.05
    """Share of the steps held out to measure the reward error."""

    def init(self, key: PRNGKeyArray, data: Trajectories) -> Reward:
        return _init(key, data, self.hidden, self.latent_size, critic=True, sees_end=False)

    def untrained(self, key: PRNGKeyArray, data: Trajectories) -> Reward:
        """Return a model of the shapes that `fit_reward` gives, to read a trained one into."""
        return stack([self.init(key, data)])

    def critic_loss(self, model: Reward, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        latent_key, mix_key = jax.random.split(key)
        step, made = self._generate(model, batch, latent_key)
        real = model.reward.apply(batch.reward[:, None])
        mix = jax.random.uniform(mix_key, real.shape)
        between = mix * real + (1 - mix) * made

        def critic(reward: Array) -> Array:
            assert model.critic is not None
            return model.critic(jnp.concatenate((step, reward), -1))[..., 0]

        slope = jax.grad(lambda reward: critic(reward).sum())(between)
        distance = critic(real).mean() - critic(made).mean()
        penalty = jnp.square(jnp.abs(slope) - 1).mean()
        return -distance + self.slope_penalty * penalty, {"distance": distance, "slope_penalty": penalty}

    def generator_loss(self, model: Reward, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        assert model.critic is not None
        step, made = self._generate(model, batch, key)
        error = jnp.square(made - model.reward.apply(batch.reward[:, None])).mean()
        return -model.critic(jnp.concatenate((step, made), -1)).mean(), {"reward_error": error}

    def _generate(self, model: Reward, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Array]:
        step = model.step(batch.observation, batch.action, batch.next_observation, batch.terminated)
        return step, model.generate(step, jax.random.normal(key, (*batch.reward.shape, self.latent_size)))

    def objectives(self) -> tuple[Objective, ...]:
        adam = optax.adam(self.learning_rate, 0.5, 0.999)
        decayed = optax.chain(optax.add_decayed_weights(self.decay), adam)
        return (
            Objective(self.critic_loss, decayed, lambda model: model.critic),
            Objective(self.generator_loss, adam, lambda model: model.generator, every=self.critic_steps),
        )


def _init(
    key: PRNGKeyArray, data: Trajectories, hidden: tuple[int, ...], latent_size: int, *, critic: bool, sees_end: bool
) -> Reward:
    rows = data.state_rows
    features = 2 * data.observation_size + data.action_size + sees_end
    generator_key, critic_key = jax.random.split(key)
    return Reward(
        observation=normaliser_of(data.observations),
        action=normaliser_of(data.actions),
        change=change_normaliser_of(data.observations, rows),
        reward=normaliser_of(data.rewards[data.next_known, None]),
        generator=MLP(features + latent_size, hidden, 1, generator_key),
        critic=MLP(features + 1, hidden, 1, critic_key) if critic else None,
        latent_size=latent_size,
        sees_end=sees_end,
    )


def fit_reward(
    config: RegressionReward | GenerativeReward, data: Trajectories, key: PRNGKeyArray
) -> tuple[Reward, FitReport]:
    """Fit the reward model, stacked along a leading axis, and report its error on held-out steps."""
    if isinstance(config, GenerativeReward):
        train, held = hold_out(data, config.held_out)
        models = stack([fit_one(config, lambda key: config.init(key, data), data, train, key, "reward")])
        found = predict_rewards(models, *_arrays(data, held))[0]
        return models, _report(data.rewards[held] - found, data.rewards[held] - data.rewards[train].mean(), data, held)
    known = np.sort(np.concatenate(hold_out(data, 0.5)))
    half = halves(data)[known]
    config = limited(config, len(known) // HALVES)
    members = [
        fit_one(
            config, lambda key: config.init(key, data), data, known[half == own], member_key, "reward",
            known[half != own],
        )
        for own, member_key in enumerate(jax.random.split(key, HALVES))
    ]  # fmt: skip
    models = stack(members)
    found = crossed(predict_rewards(models, *_arrays(data, known)), half)
    found = np.clip(found, data.rewards.min(), data.rewards.max())  # as it is used
    means = np.array([data.rewards[known[half != own]].mean(dtype=np.float64) for own in range(HALVES)])
    return models, _report(data.rewards[known] - found, data.rewards[known] - means[half], data, known)


def halves(data: Trajectories) -> Integer[np.ndarray, " steps"]:
    """Return which half of the episodes each step belongs to; of the steps, if there are few episodes."""
    random = np.random.default_rng(0)
    if len(data) < FEWEST_EPISODES:
        return random.permutation(data.steps) % HALVES
    return (random.permutation(len(data)) % HALVES)[data.episode_of_step]


def crossed(found: Float[np.ndarray, "members rows"], half: Integer[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """Return each row's prediction by a member that was not fitted to its half; by the GAN, if that is the model."""
    return found[(half + 1) % len(found), np.arange(found.shape[1])]


def predict_rewards(
    models: Reward, states: np.ndarray, actions: np.ndarray, following: np.ndarray, terminated: np.ndarray
) -> Float[np.ndarray, "members rows"]:
    """Return each member's prediction for any number of steps."""
    steps = (*(part.astype(np.float32) for part in (states, actions, following)), terminated)
    return in_batches(lambda *step: _predict(models, *step), *steps).T


@compiled
def _predict(models: Reward, state: Array, action: Array, following: Array, terminated: Array) -> Array:
    return eqx.filter_vmap(lambda model: model(state, action, following, terminated), out_axes=1)(models)


def _arrays(data: Trajectories, steps: np.ndarray) -> tuple[np.ndarray, ...]:
    rows = data.state_rows[steps]
    return data.observations[rows], data.actions[steps], data.observations[rows + 1], data.terminated[steps]


def _report(error: np.ndarray, guess: np.ndarray, data: Trajectories, steps: np.ndarray) -> FitReport:
    """Return the fit report: the model must do better than the mean, and not by the chance of a few episodes.

    What an episode gains counts in all or per step, by which it is surer: a long one would decide the sum, and one that
    is rewarded and ends at once the mean.
    """
    mean_error, baseline = (float(np.square(part).mean(dtype=np.float64)) for part in (error, guess))
    share = explained(mean_error, baseline, float(np.square(data.rewards[steps]).mean(dtype=np.float64)))
    episode = np.unique(data.episode_of_step[steps], return_inverse=True)[1]
    gain = np.bincount(episode, np.square(guess) - np.square(error))
    sure = max(_standard_errors(gain), _standard_errors(gain / np.bincount(episode)))
    facts = {"reward_error": mean_error**0.5, "baseline": baseline**0.5, "R²": share}
    return FitReport("reward", share > 0.1 and (baseline == 0 or sure >= MIN_T), facts)


def _standard_errors(gain: Float[np.ndarray, " episodes"]) -> float:
    """Return by how many standard errors the mean gain exceeds 0; without a spread, as many as can be."""
    error = float(gain.std()) / max(len(gain) - 1, 1) ** 0.5
    return float(gain.mean()) / error if error > 0 else float(np.copysign(np.inf, gain.mean()))
