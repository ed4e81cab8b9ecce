"""The training loop: exact, resumable, and blind to who trains beside whom."""

from dataclasses import dataclass, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajstitch.errors import InputError
from trajstitch.learning import compiled
from trajstitch.learning.buffer import SMALLEST, Slices, buffer_size, fill_buffer
from trajstitch.learning.fit import Objective, State, begin, fit, member
from trajstitch.learning.networks import MLP


@dataclass(frozen=True)
class Regression:
    """y = 3x - 1 by a small network."""

    steps: int = 120
    batch_size: int = 32
    every: int = 1

    def init(self, key):
        return MLP(1, (16,), 1, key)

    def loss(self, model, batch, key):
        error = jnp.square(model(batch[0]) - batch[1]).mean()
        return error, {"error": error}

    def objectives(self):
        return (Objective(self.loss, optax.adam(3e-2), every=self.every),)


def line(rows: int = 500, seed: int = 0):
    x = np.random.default_rng(seed).normal(size=(rows, 1)).astype(np.float32)
    return jnp.asarray(x), jnp.asarray(3 * x - 1)


def start(algorithm, members: int = 1) -> State:
    keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(7), seed))(jnp.arange(members))
    return begin(algorithm, eqx.filter_vmap(algorithm.init)(keys), keys)


def same(a, b) -> bool:
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
                              jax.random.key_data(y) if jnp.issubdtype(y.dtype, jax.dtypes.prng_key) else y)
               for x, y in leaves)  # fmt: skip


def test_it_learns_a_line():
    algorithm = Regression()
    x, y = line()
    model = member(fit(algorithm, start(algorithm), (x, y), every=40).best, 0)
    assert float(jnp.abs(model(x) - y).mean()) < 0.2


def test_same_seed_gives_the_same_bits_whatever_the_chunks():
    algorithm = Regression()
    assert same(
        fit(algorithm, start(algorithm), line(), every=40).model,
        fit(algorithm, start(algorithm), line(), every=10).model,
    )


def test_a_member_learns_the_same_alone_and_in_company():
    algorithm = Regression()
    alone, together = (fit(algorithm, start(algorithm, members), line(), every=40) for members in (1, 3))
    assert same(member(alone.model, 0), member(together.model, 0))
    assert not same(member(together.model, 0), member(together.model, 1))


def test_a_member_learns_the_same_wherever_its_rows_stand():
    algorithm = Regression()
    sets = [line(rows, seed) for rows, seed in ((500, 0), (37, 1), (3000, 2))]
    table, slices = fill_buffer(sets, [500, 37, 3000])
    together = fit(algorithm, start(algorithm, 3), table, slices, every=40)
    for number, data in enumerate(sets):
        every = start(algorithm, 3)
        own = begin(algorithm, member(every.model, slice(number, number + 1)), every.keys[number : number + 1])
        alone = fit(algorithm, own, data, every=40)
        assert same(member(alone.model, 0), member(together.model, number))


def test_rows_outside_a_members_slice_are_never_drawn():
    algorithm = Regression(batch_size=64)
    x, y = line(100)
    surrounded = (jnp.pad(part, ((700, 1300), (0, 0)), constant_values=jnp.nan) for part in (x, y))
    state = fit(algorithm, start(algorithm), tuple(surrounded), Slices(np.array([700]), np.array([100])), every=40)
    assert same(state.model, fit(algorithm, start(algorithm), (x, y), every=40).model)


def test_early_stopping_of_a_member_does_not_depend_on_the_others():
    algorithm = Regression()
    noisy = line(20)[0], line(20)[1] + np.random.default_rng(3).normal(size=(20, 1)).astype(np.float32)
    held = line(40, seed=1)
    alone, together = (
        fit(algorithm, start(algorithm, members), noisy, held_out=held, patience=30, every=10) for members in (1, 3)
    )
    assert same(member(alone.best, 0), member(together.best, 0))
    assert int(alone.step) < algorithm.steps
    assert int(alone.best_step[0]) == int(together.best_step[0])


def test_the_best_parameters_are_kept_not_the_last():
    algorithm = Regression()
    noisy = line(20)[0], line(20)[1] + np.random.default_rng(3).normal(size=(20, 1)).astype(np.float32)
    held = line(40, seed=1)
    state = fit(algorithm, start(algorithm), noisy, held_out=held, every=10)

    def loss(model):
        return float(algorithm.loss(member(model, 0), held, None)[0])

    assert loss(state.best) <= loss(state.model)
    np.testing.assert_allclose(loss(state.best), float(state.best_loss[0]), rtol=1e-5)


def test_an_interrupted_fit_resumes_to_the_same_bits():
    algorithm = Regression()
    data, held = line(), line(40, seed=1)
    whole = fit(algorithm, start(algorithm, 3), data, held_out=held, every=40)

    kept: list[State] = []

    def interrupt(state, metrics):
        kept.append(state)
        if len(kept) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(algorithm, start(algorithm, 3), data, held_out=held, every=40, each=interrupt)
    assert int(kept[-1].step) == 80
    assert same(fit(algorithm, kept[-1], data, held_out=held, every=40), whole)


class Pair(eqx.Module):
    online: jax.Array
    target: jax.Array
    other: jax.Array


@dataclass(frozen=True)
class Alternating:
    """The online number falls by 1 a step, the other by 1 at every third; the target follows the online one."""

    steps: int = 9
    batch_size: int = 2

    def objectives(self):
        def loss_of(name):
            return lambda model, batch, key: (getattr(model, name).sum(), {name: getattr(model, name)[0]})

        def follow(model):
            return eqx.tree_at(lambda model: model.target, model, 0.5 * model.target + 0.5 * model.online)

        return (
            Objective(loss_of("online"), optax.sgd(1.0), lambda model: model.online, then=follow),
            Objective(loss_of("other"), optax.sgd(1.0), lambda model: model.other, every=3),
        )


def test_objectives_alternate_and_targets_follow():
    algorithm = Alternating()
    model = Pair(jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    seen = []
    keys = jax.random.split(jax.random.key(0), 1)
    state = fit(
        algorithm, begin(algorithm, model, keys), (jnp.zeros((4, 1)),), every=4, each=lambda s, m: seen.append(m)
    )
    target = 0.0
    for online in range(-1, -10, -1):
        target = 0.5 * target + 0.5 * online
    assert float(state.model.online[0, 0]) == -9
    assert float(state.model.other[0, 0]) == -3
    assert float(state.model.target[0, 0]) == pytest.approx(target)
    assert [round(metrics["other"], 6) for metrics in seen] == [0.0, -1.0, -2.0]
    assert [round(metrics["online"], 6) for metrics in seen] == [-1.5, -5.5, -8.0]  # the means of four, four and one


def test_equal_configs_and_other_numbers_of_rows_share_one_compiled_loop():
    from trajstitch.learning.fit import _chunk

    algorithm = Regression()
    fit(algorithm, start(algorithm), line(1100), every=40)
    before = _chunk.program._cache_size()  # pyright: ignore
    for rows in (1100, 1300, 1536):
        fit(replace(algorithm), start(algorithm), line(rows, seed=2), every=40)
    assert _chunk.program._cache_size() == before  # pyright: ignore


@given(st.integers(1, 2**40))
def test_a_table_has_room_for_its_rows_and_at_most_half_as_many_more(rows):
    size = buffer_size(rows)
    assert rows <= size <= max(1.5 * rows, SMALLEST)
    assert buffer_size(size) == size


def test_no_data_is_a_clear_error():
    algorithm = Regression()
    for slices in (None, Slices(np.zeros(2, int), np.array([5, 0]))):
        with pytest.raises(InputError, match="nothing to train on"):
            fit(algorithm, start(algorithm, 2), line(0 if slices is None else 5), slices)


def maps() -> int:
    return len(compiled.MAPS.read_bytes().splitlines())


@pytest.mark.skipif(not compiled.MAPS.exists(), reason="only Linux counts a process's memory maps")
def test_programs_are_forgotten_before_a_process_has_too_many_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One map too many and XLA ends the process: on Linux after some 65,000, by twenty data sets of other shapes."""
    x, y = line()

    def before_the_next_fit(batch: int, allowed: int) -> int:
        monkeypatch.setattr(compiled, "MAPS_ALLOWED", tmp_path / "allowed")
        compiled.MAPS_ALLOWED.write_text(f"{allowed}\n")
        trained = fit(Regression(steps=2, batch_size=batch), start(Regression()), (x, y))
        assert jnp.isfinite(member(trained.model, 0)(x)).all()
        return maps()

    few = before_the_next_fit(2, 1)
    many = max(before_the_next_fit(batch, 10_000_000) for batch in range(3, 13))
    assert many > few + 50
    assert before_the_next_fit(13, 1) < many - 50
