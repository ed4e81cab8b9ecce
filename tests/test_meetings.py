"""Trainings that several threads ask for at the same time: made in one call, to the same bits."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from test_fit import Regression, line, same, start
from trajstitch.errors import InputError
from trajstitch.learning import fit as fitting
from trajstitch.learning.fit import fit
from trajstitch.learning.together import together


@pytest.fixture
def calls(monkeypatch):
    """The number of members of each training that was made."""
    made, real = [], fitting._fit

    def counted(asked):
        made.append(len(asked.state.keys))
        return real(asked)

    monkeypatch.setattr(fitting, "_fit", counted)
    return made


def two_fits(number: int):
    """Return a task of two trainings, the second of which needs what came of the first."""

    def task():
        first = fit(Regression(steps=40), start(Regression(), 1 + number), line(300 + 50 * number, number))
        data = jax.tree.map(lambda part: part + first.best.layers[0][1].mean(), line(400, number))
        held_out = line(60, 100 + number)
        return first, fit(Regression(), start(Regression(), 2), data, held_out=held_out, patience=20, every=10)

    return task


def test_trainings_of_several_threads_are_made_in_one_call_to_the_same_bits(calls):
    tasks = [two_fits(number) for number in range(3)]
    alone = [task() for task in tasks]
    assert calls == [1, 2, 2, 2, 3, 2]
    calls.clear()
    found = together(tasks)
    assert calls == [1 + 2 + 3, 2 + 2 + 2]
    for one, other in zip(alone, found, strict=True):
        assert same(replace(one[0], best=None), replace(other[0], best=None))
        assert same(one[1].best, other[1].best)
        assert same(one[1].best_loss, other[1].best_loss)
        assert same(one[1].best_step, other[1].best_step)


def test_each_training_keeps_what_is_best_on_its_own_held_out_rows():
    x, y = line()
    rows = {"as it was": (x[:50], y[:50]), "the other way round": (x[:50], -y[:50])}

    def task(held_out):
        return lambda: fit(Regression(), start(Regression()), (x, y), held_out=held_out, every=10)

    right, wrong = together([task(held_out) for held_out in rows.values()])
    assert right.best_step[0] > wrong.best_step[0]
    assert right.best_loss[0] < 0.05 < wrong.best_loss[0]


def test_a_thread_that_is_done_or_asks_for_another_training_keeps_nobody_waiting(calls):
    @dataclass(frozen=True)
    class Wider(Regression):
        batch_size: int = 64

    def fits(*algorithms):
        return lambda: [fit(one, start(one), line()).model for one in algorithms]

    found = together([fits(Regression(), Regression(), Wider()), fits(Wider()), fits(), fits(Regression(steps=60))])
    assert [len(models) for models in found] == [3, 1, 0, 1]
    assert sum(calls) == 5
    assert same(found[0][0], found[0][1])
    assert same(found[0][2], found[1][0])


def test_an_error_of_one_thread_is_raised_when_the_others_are_done():
    done = []

    def failing():
        raise InputError("no data")

    def working():
        done.append(fit(Regression(), start(Regression()), line()))

    with pytest.raises(InputError, match="no data"):
        together([working, failing, working])
    assert len(done) == 2


def test_trainings_that_diverge_together_fail_in_every_thread():
    x, y = line()

    def task(scale):
        return lambda: fit(Regression(), start(Regression()), (x, jnp.asarray(np.asarray(y) * scale)))

    with pytest.raises(InputError, match="diverged"):
        together([task(1.0), task(np.inf)])
