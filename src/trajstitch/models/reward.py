"""The reward of a step (s, a, s'): a regression, or the paper's conditional Wasserstein GAN."""

from dataclasses import dataclass
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from trajstitch.data.normalise import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.data.transitions import Transitions, hold_out
from trajstitch.learning.batching import in_batches
from trajstitch.learning.bounds import Bounds
from trajstitch.learning.fit import Metrics, Objective
from trajstitch.learning.fit_report import FitReport, explained
from trajstitch.learning.networks import MLP, normaliser_of
from trajstitch.models.fitting import fit_one


class Reward(eqx.Module):
    """The predictor, and the GAN's critic if there is one."""

    observation: Normaliser
    action: Normaliser
    change: Normaliser
    reward: Normaliser
    generator: MLP
    critic: MLP | None
    latent_size: Annotated[int, Bounds(1)] = eqx.field(static=True)

    def __call__(
        self,
        observation: Float[Array, "*rows size"],
        action: Float[Array, "*rows action"],
        next_observation: Float[Array, "*rows size"],
        latent: Float[Array, "*rows latent"] | None = None,
    ) -> Float[Array, "*rows"]:
        """Return the step's reward; without a latent, at the latent's mean."""
        step = self.step(observation, action, next_observation)
        return self.reward.undo(self.generate(step, latent))[..., 0]

    def step(self, observation: Array, action: Array, next_observation: Array) -> Float[Array, "*rows features"]:
        parts = (
            self.observation.apply(observation),
            self.action.apply(action),
            self.change.apply(next_observation - observation),
        )
        return jnp.concatenate(parts, -1)

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
    """Gradient steps."""
    held_out: Annotated[float, Bounds(0, 1)] = 0.05
    """Share of the steps held out to measure the reward error."""

    def init(self, key: PRNGKeyArray, data: Trajectories) -> Reward:
        return _init(key, data, self.hidden, latent_size=0, critic=False)

    def loss(self, model: Reward, batch: Transitions, key: PRNGKeyArray) -> tuple[Array, Metrics]:
        found = model.generate(model.step(batch.observation, batch.action, batch.next_observation), None)
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
    held_out: Annotated[float, Bounds(0, 1)] = 0.05
    """Share of the steps held out to measure the reward error."""

    def init(self, key: PRNGKeyArray, data: Trajectories) -> Reward:
        return _init(key, data, self.hidden, self.latent_size, critic=True)

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
        step = model.step(batch.observation, batch.action, batch.next_observation)
        return step, model.generate(step, jax.random.normal(key, (*batch.reward.shape, self.latent_size)))

    def objectives(self) -> tuple[Objective, ...]:
        adam = optax.adam(self.learning_rate, 0.5, 0.999)
        decayed = optax.chain(optax.add_decayed_weights(self.decay), adam)
        return (
            Objective(self.critic_loss, decayed, lambda model: model.critic),
            Objective(self.generator_loss, adam, lambda model: model.generator, every=self.critic_steps),
        )


def _init(key: PRNGKeyArray, data: Trajectories, hidden: tuple[int, ...], latent_size: int, critic: bool) -> Reward:
    rows = data.state_rows
    features = 2 * data.observation_size + data.action_size
    generator_key, critic_key = jax.random.split(key)
    return Reward(
        observation=normaliser_of(data.observations),
        action=normaliser_of(data.actions),
        change=normaliser_of(data.observations[rows + 1] - data.observations[rows]),
        reward=normaliser_of(data.rewards[data.next_known, None]),
        generator=MLP(features + latent_size, hidden, 1, generator_key),
        critic=MLP(features + 1, hidden, 1, critic_key) if critic else None,
        latent_size=latent_size,
    )


def fit_reward(
    config: RegressionReward | GenerativeReward, data: Trajectories, key: PRNGKeyArray
) -> tuple[Reward, FitReport]:
    """Fit the reward model, and report its error on held-out steps."""
    train, held = hold_out(data, config.held_out)
    model = fit_one(config, lambda key: config.init(key, data), data, train, key, "reward")
    rows = data.state_rows[held]
    steps = (data.observations[rows], data.actions[held], data.observations[rows + 1])
    found = in_batches(lambda *step: _predict(model, *step), *(part.astype(np.float32) for part in steps))
    error = float(np.square(found - data.rewards[held]).mean(dtype=np.float64))
    baseline = float(np.square(data.rewards[train].mean(dtype=np.float64) - data.rewards[held]).mean(dtype=np.float64))
    share = explained(error, baseline, float(np.square(data.rewards[held]).mean(dtype=np.float64)))
    return model, FitReport("reward", share > 0.1, {"reward_error": error**0.5, "baseline": baseline**0.5, "R²": share})


@eqx.filter_jit
def _predict(model: Reward, state: Array, action: Array, following: Array) -> Array:
    return model(state, action, following)
