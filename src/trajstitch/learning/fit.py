"""The one training loop, which fits every model and every policy.

An algorithm is a frozen config that lists its objectives: a loss, the optimiser that lowers it, and the part of
the model that the optimiser moves. One step draws a batch and takes the objectives in turn:

    dynamics, CVAE, BC     one objective
    twin V                 one objective, then the target networks follow
    WGAN                   the critic at every step, the generator at every fifth
    TD3+BC                 the critics at every step, the actor at every second, then the targets follow

Many members (an ensemble, seeds, the same on several data sets) train together along a leading axis of the model.
What a member learns depends only on its own key and its own rows of the data: step n draws from `fold_in(key, n)`.
So no bit depends on the length of the chunks (where objectives alternate, in whole periods), on an interruption, on
the number of members, or on the other data in the buffer. On the CPU, where a vmap is no faster and would round
differently, one program trains one member, and members take turns; elsewhere they are one vmap.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Integer, Key, PRNGKeyArray

from trajstitch.errors import InputError
from trajstitch.learning.buffer import Slices, padded
from trajstitch.learning.compiled import compiled, forget_if_many, wait_for
from trajstitch.learning.together import Training, meeting
from trajstitch.progress import progress

Metrics = dict[str, Array]
Loss = Callable[[Any, Any, PRNGKeyArray], tuple[Float[Array, ""], Metrics]]


def itself(model: Any) -> Any:
    """Return the argument."""
    return model


@dataclass(frozen=True)
class Objective:
    """A loss, the optimiser that lowers it, and what the optimiser moves."""

    loss: Loss
    """(model, batch, key) to (loss, metrics); the model is one member's."""
    optimiser: optax.GradientTransformation
    moves: Callable[[Any], Any] = itself
    """The part of the model (or tuple of parts) whose arrays the optimiser moves."""
    every: int = 1
    """Take this objective's step at every n-th step of the loop; 1 is each."""
    then: Callable[[Any], Any] = itself
    """Change the model after this objective's step, such as by moving target networks."""


@runtime_checkable
class Algorithm(Protocol):
    """What `fit` trains: a config that is frozen and hashable, so that equal configs share one compiled loop."""

    @property
    def steps(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    def objectives(self) -> tuple[Objective, ...]: ...


class State(eqx.Module):
    """Everything that training needs to continue: save it, load it, and `fit` continues to the same bits."""

    model: Any
    """The members' models, stacked along a leading axis."""
    optimisers: tuple[Any, ...]
    """Each objective's optimiser state, stacked in the same way."""
    keys: Key[Array, " members"]
    """One key for each member."""
    step: Integer[Array, ""]
    best: Any
    """The models with the lowest held-out loss so far."""
    best_loss: Float[Array, " members"]
    best_step: Integer[Array, " members"]


@eqx.filter_jit
def stack(members: list[Any]) -> Any:
    """Stack models along a new leading axis, as `begin` takes them."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *members)


def member(models: Any, index: int | slice | np.ndarray) -> Any:
    """Return one of the stacked models, or several by a slice or an array of indices."""
    return jax.tree.map(lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf, models)


def begin(algorithm: Algorithm, models: Any, keys: Key[Array, " members"]) -> State:
    """Return the state before the first step; `models` are stacked, with one key for each member."""
    return State(
        model=models,
        optimisers=_optimisers(algorithm, models),
        keys=keys,
        step=jnp.zeros((), jnp.int32),
        best=models,
        best_loss=jnp.full(len(keys), jnp.inf, jnp.float32),
        best_step=jnp.zeros(len(keys), jnp.int32),
    )


@eqx.filter_jit
def _optimisers(algorithm: Algorithm, models: Any) -> tuple[Any, ...]:
    """Return each objective's optimiser state."""
    if not algorithm.objectives():
        return ()  # nothing to vmap over, if the model has no arrays either

    def of_member(model: Any) -> tuple[Any, ...]:
        return tuple(
            objective.optimiser.init(eqx.filter(objective.moves(model), eqx.is_inexact_array))
            for objective in algorithm.objectives()
        )

    return eqx.filter_vmap(of_member)(models)


def fit(
    algorithm: Algorithm,
    state: State,
    data: Any,
    slices: Slices | None = None,
    held_out: Any = None,
    patience: int | None = None,
    every: int = 1000,
    title: str = "training",
    each: Callable[[State, dict[str, float]], None] | None = None,
) -> State:
    """Train from the step of `state` to the algorithm's last step.

    `data` is a pytree of arrays whose first axis is drawn from: each member draws from its slice, or from all of it if
    no `slices` are given. With `held_out` data of the same form, `best` keeps the parameters with the lowest loss (the
    first objective's) on it; a member that has not improved for `patience` steps keeps no later ones, and training
    ends when none has. After each `every` steps, the held-out loss is computed, progress is shown and `each` is called
    with the state and the mean metrics. In a thread of `together`, equal trainings of the others are made with it.
    """
    rows, members = len(jax.tree.leaves(data)[0]), len(state.keys)
    slices = Slices(np.zeros(members, int), np.full(members, rows)) if slices is None else slices
    if np.min(slices.rows) == 0:
        raise InputError(f"{title}: there is nothing to train on")
    assert len(slices.rows) == members
    assert np.max(slices.first + slices.rows) <= rows
    patience = algorithm.steps if patience is None else patience
    asked = Training(algorithm, state, data, slices, held_out, patience, every, title, each)
    others = meeting()
    return _fit(asked) if others is None else others.fit(asked, _fit)


def _fit(asked: Training) -> State:
    algorithm, state, title = asked.algorithm, asked.state, asked.title
    forget_if_many()
    slices = Slices(*(jnp.asarray(part, jnp.int32) for part in asked.slices))
    data, held_out = jax.device_put((padded(asked.data), asked.held_out))
    own = None if asked.held_out_of is None else jnp.asarray(asked.held_out_of, jnp.int32)
    done, every = int(state.step), asked.every
    with progress(title, max(algorithm.steps - done, 0), "steps") as advance:
        if done < algorithm.steps:
            advance(0, note="compiling")
        while done < algorithm.steps:
            length = min(every - done % every, algorithm.steps - done)
            state, metrics = _advance(algorithm, state, data, slices, done, length)
            done += length
            if held_out is not None:
                state = _keep_best(algorithm, state, held_out, own, asked.patience)
                metrics["held_out"] = state.best_loss
            shown = {name: float(np.mean(value)) for name, value in jax.device_get(wait_for(metrics)).items()}
            if not all(map(math.isfinite, shown.values())):
                found = ", ".join(f"{name} {value:g}" for name, value in shown.items())
                raise InputError(
                    f"{title}: diverged before step {done:,} ({found}): try a smaller learning rate, or look for "
                    "extreme values in the data with `trajstitch inspect`"
                )
            advance(length, **{name: shown[name] for name in ("held_out", "loss") if name in shown})
            if asked.each is not None:
                asked.each(state, shown)
            if held_out is not None and bool(jnp.all(done - state.best_step >= asked.patience)):
                break
    return state if held_out is not None else replace(state, best=state.model)


def _advance(
    algorithm: Algorithm, state: State, data: Any, slices: Slices, done: int, length: int
) -> tuple[State, Metrics]:
    phase = done % period(algorithm)
    members = (state.model, state.optimisers, state.keys, slices)
    if jax.default_backend() == "cpu":
        # A loop over members within the program would be compiled, fused and so rounded differently for each number of
        # members. Dispatched one by one, they run in parallel if there are free cores.
        parts = _apart(members, len(state.keys)) if len(state.keys) > 1 else [members]
        moved = [_chunk(algorithm, part, state.step, data, phase, length) for part in parts]
        (model, optimisers), metrics = _together(moved) if len(moved) > 1 else moved[0]
    else:
        (model, optimisers), metrics = _chunk(algorithm, members, state.step, data, phase, length)
    step = state.step + length
    return State(model, optimisers, state.keys, step, state.best, state.best_loss, state.best_step), metrics


@compiled
def _apart(members: Any, count: int) -> list[Any]:
    """Return each member with a leading axis of length one."""
    return [jax.tree.map(lambda leaf: leaf[i : i + 1] if eqx.is_array(leaf) else leaf, members) for i in range(count)]  # noqa: B023


@compiled
def _together(parts: list[Any]) -> Any:
    """Return the members in one; the inverse of `_apart`."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves) if eqx.is_array(leaves[0]) else leaves[0], *parts)


def period(algorithm: Algorithm) -> int:
    """Return the number of steps after which the same objectives are due again."""
    return math.lcm(*(objective.every for objective in algorithm.objectives()))


@compiled
def _chunk(
    algorithm: Algorithm,
    members: tuple[Any, Any, Key[Array, " members"], Slices],
    first: Array,
    data: Any,
    phase: int,
    length: int,
) -> tuple[tuple[Any, Any], Metrics]:
    """Take `length` steps of every member; `first` is the number of the first, `phase` its place within a period.

    The loop's body is a whole period, in which each step's objectives are known: deciding within the loop would copy
    the whole model at each step, and keep the CPU from running independent parts in parallel.
    """
    *trained, keys, slices = members
    steps = first + jnp.arange(length)
    arrays, static = eqx.partition(tuple(trained), eqx.is_array)
    cycle = period(algorithm)
    before = min(-phase % cycle, length)
    whole = (length - before) // cycle * cycle

    def train(arrays: Any, key: PRNGKeyArray, own: Slices) -> tuple[Any, tuple[Metrics, ...]]:
        # Drawn for the whole chunk at once: small random kernels inside the loop would cost more than the step.
        keys = jax.vmap(lambda step: jax.random.fold_in(key, step))(steps)
        inside = jax.vmap(lambda key: jax.random.randint(key, (algorithm.batch_size,), 0, own.rows))(keys)
        drawn = inside + own.first

        def some(arrays: Any, now: tuple[Key[Array, " steps"], Array], phase: int) -> tuple[Any, tuple[Metrics, ...]]:
            """Take a few steps, one by one, and sum their metrics."""
            model, optimisers = eqx.combine(arrays, static)
            found: list[Any] = []
            for number, (key, index) in enumerate(zip(*now, strict=True)):
                batch = jax.tree.map(lambda leaf: leaf[index], data)  # noqa: B023
                model, optimisers, metrics = _step(algorithm, model, optimisers, batch, phase + number, key)
                found.append(metrics)
            return eqx.filter((model, optimisers), eqx.is_array), jax.tree.map(lambda *values: sum(values), *found)

        def cut(start: int, stop: int) -> tuple[Key[Array, " steps"], Array]:
            return keys[start:stop], drawn[start:stop]

        sums = []
        if before:
            arrays, metrics = some(arrays, cut(0, before), phase)
            sums.append(metrics)
        if whole:
            groups = jax.tree.map(lambda leaf: leaf.reshape(-1, cycle, *leaf.shape[1:]), cut(before, before + whole))
            arrays, metrics = jax.lax.scan(lambda arrays, now: some(arrays, now, 0), arrays, groups)
            sums.append(jax.tree.map(lambda values: jnp.sum(values, 0), metrics))
        if before + whole < length:
            arrays, metrics = some(arrays, cut(before + whole, length), 0)
            sums.append(metrics)
        return arrays, jax.tree.map(lambda *values: sum(values), *sums)

    if len(keys) == 1:
        one = train(*jax.tree.map(lambda leaf: leaf[0], (arrays, keys, slices)))
        arrays, sums = jax.tree.map(lambda leaf: leaf[None], one)
    else:
        arrays, sums = jax.vmap(train)(arrays, keys, slices)
    metrics: Metrics = {}
    for objective, total in zip(algorithm.objectives(), sums, strict=True):
        count = max(sum(_due(objective, phase + step) for step in range(length)), 1)
        metrics |= {name: value / count for name, value in total.items() if name not in metrics}
    return eqx.combine(arrays, static), metrics


def _due(objective: Objective, number: int) -> bool:
    """Return whether the objective takes a step at this step of the loop."""
    return (number + 1) % objective.every == 0


def _step(
    algorithm: Algorithm, model: Any, optimisers: tuple[Any, ...], batch: Any, number: int, key: PRNGKeyArray
) -> tuple[Any, tuple[Any, ...], tuple[Metrics, ...]]:
    moved, all_metrics = [], []
    for index, (objective, optimiser) in enumerate(zip(algorithm.objectives(), optimisers, strict=True)):
        own_key = jax.random.fold_in(key, index)
        if _due(objective, number):
            model, optimiser, metrics = _move(objective, model, optimiser, batch, own_key)
        else:
            shapes = eqx.filter_eval_shape(_move, objective, model, optimiser, batch, own_key)[2]
            metrics = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        moved.append(optimiser)
        all_metrics.append(metrics)
    return model, tuple(moved), tuple(all_metrics)


def _move(objective: Objective, model: Any, optimiser: Any, batch: Any, key: PRNGKeyArray) -> tuple[Any, Any, Metrics]:
    moving, still = eqx.partition(objective.moves(model), eqx.is_inexact_array)

    def loss(moving: Any) -> tuple[Array, Metrics]:
        return objective.loss(eqx.tree_at(objective.moves, model, eqx.combine(moving, still)), batch, key)

    (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(moving)
    change, optimiser = objective.optimiser.update(gradient, optimiser, moving)
    model = eqx.tree_at(objective.moves, model, eqx.combine(optax.apply_updates(moving, change), still))
    return objective.then(model), optimiser, {"loss": value, **metrics}


@compiled
def _keep_best(algorithm: Algorithm, state: State, held_out: Any, own: Array | None, patience: int) -> State:
    arrays, static = eqx.partition(state.model, eqx.is_array)
    loss = algorithm.objectives()[0].loss

    def held_out_loss(one: tuple[Any, PRNGKeyArray, Array | None]) -> Array:
        rows = held_out if own is None else jax.tree.map(lambda leaf: leaf[one[2]], held_out)
        return loss(eqx.combine(one[0], static), rows, one[1])[0]

    members = (arrays, state.keys, own)
    found = jax.lax.map(held_out_loss, members) if jax.default_backend() == "cpu" else jax.vmap(held_out_loss)(members)
    waiting = state.step - state.best_step <= patience
    better = waiting & (found < state.best_loss)

    def choose(new: Any, old: Any) -> Any:
        return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old) if eqx.is_array(new) else old

    return State(
        state.model,
        state.optimisers,
        state.keys,
        state.step,
        jax.tree.map(choose, state.model, state.best),
        jnp.where(better, found, state.best_loss),
        jnp.where(better, state.step, state.best_step),
    )
