"""Trainings that several threads ask for are made in one call, which on an accelerator takes little longer than one.

A stitching fits its models one after the other, and each fit needs what came of the one before. Several stitchings side
by side ask for equal trainings at the same time: when every thread either waits for a training or is done, those that
differ in nothing but their data, keys and weights become members of one.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Integer

from trajstitch.learning.buffer import Slices, fill_buffer

T = TypeVar("T")


@dataclass(frozen=True)
class Training:
    """What `fit` is asked for."""

    algorithm: Any
    state: Any
    data: Any
    slices: Slices
    held_out: Any
    patience: int
    every: int
    title: str
    each: Callable[[Any, dict[str, float]], None] | None
    held_out_of: Integer[np.ndarray, " members"] | None = None
    """With several held-out sets, stacked along a leading axis: which one is each member's."""

    @property
    def members(self) -> int:
        return len(self.state.keys)

    @property
    def kind(self) -> Hashable:
        """What trainings that can be one have in common; None for one that can't be joined."""
        if self.each is not None or int(self.state.step):
            return None
        held_out = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(self.held_out)]
        return (
            self.algorithm,
            _form(_of_members(self.state)),
            _form(self.data),
            tuple(held_out),
            self.patience,
            self.every,
        )


def _form(tree: Any) -> Hashable:
    """Return a tree's structure, and its leaves' types and shapes but for the first axis."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape[1:], leaf.dtype) if hasattr(leaf, "shape") else leaf for leaf in leaves)


def joined(several: Sequence[Training]) -> Training:
    """Return one training whose members are those of several of the same kind, in order."""
    first = several[0]
    parts = [jax.tree.map(np.asarray, one.data) for one in several]
    buffer, places = fill_buffer(parts, [len(jax.tree.leaves(part)[0]) for part in parts])
    starts = [np.asarray(one.slices.first) + start for one, start in zip(several, places.first, strict=True)]
    together = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves) if hasattr(leaves[0], "shape") else leaves[0],
        *(_of_members(one.state) for one in several),
    )
    return replace(
        first,
        state=replace(first.state, **together),
        data=buffer,
        slices=Slices(np.concatenate(starts), np.concatenate([np.asarray(one.slices.rows) for one in several])),
        held_out=jax.tree.map(lambda *leaves: np.stack(leaves), *(one.held_out for one in several)),
        title=f"{first.title}, {len(several)} at once",
        held_out_of=np.repeat(np.arange(len(several)), [one.members for one in several]),
    )


def divided(state: Any, several: Sequence[Training]) -> list[Any]:
    """Return the state of each training from that of all; the inverse of `joined`."""
    ends, whole = accumulate(one.members for one in several), _of_members(state)

    def part(first: int, end: int) -> dict[str, Any]:
        return jax.tree.map(lambda leaf: leaf[first:end] if hasattr(leaf, "shape") else leaf, whole)

    return [replace(state, **part(end - one.members, end)) for one, end in zip(several, ends, strict=True)]


def _of_members(state: Any) -> dict[str, Any]:
    """Return the parts of a state that are stacked along an axis of members: all but the number of steps."""
    return {item.name: getattr(state, item.name) for item in fields(state) if item.name != "step"}


@dataclass
class Meeting:
    """Where threads bring their trainings."""

    present: int
    """Threads that are not done."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: list["_Asked"] = field(default_factory=list)

    def fit(self, asked: Training, make: Callable[[Training], Any]) -> Any:
        """Return the state that a training ends with, once all threads have asked for one or are done."""
        mine = _Asked(asked, make, asked.kind)
        with self.changed:
            self.waiting.append(mine)
            self._make_if_all_wait()
            self.changed.wait_for(lambda: mine.made)
        if mine.error is not None:
            raise mine.error
        return mine.state

    def leave(self) -> None:
        with self.changed:
            self.present -= 1
            self._make_if_all_wait()

    def _make_if_all_wait(self) -> None:
        if not self.waiting or len(self.waiting) < self.present:
            return
        due, self.waiting = self.waiting, []
        kinds: dict[Hashable, list[_Asked]] = {}
        for number, one in enumerate(due):
            kinds.setdefault(number if one.kind is None else one.kind, []).append(one)
        for some in kinds.values():
            _make(some)
        self.changed.notify_all()


@dataclass
class _Asked:
    training: Training
    make: Callable[[Training], Any]
    kind: Hashable
    state: Any = None
    error: BaseException | None = None
    made: bool = False


def _make(some: Sequence[_Asked]) -> None:
    """Make trainings of one kind, in one call."""
    trainings = [one.training for one in some]
    try:
        make = some[0].make
        found = divided(make(joined(trainings)), trainings) if len(some) > 1 else [make(trainings[0])]
        for one, state in zip(some, found, strict=True):
            one.state = state
    except BaseException as error:
        for one in some:
            one.error = error
    for one in some:
        one.made = True


_meeting: ContextVar[Meeting | None] = ContextVar("meeting", default=None)


def meeting() -> Meeting | None:
    """Return the meeting that this thread takes part in, if any."""
    return _meeting.get()


def together(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Do each task in a thread of its own, with the trainings of all made together; return their results in order.

    If tasks fail, the first of their errors is raised when all are done.
    """
    if len(tasks) == 1:
        return [tasks[0]()]
    place = Meeting(len(tasks))
    found: list[Any] = [None] * len(tasks)
    errors: list[BaseException | None] = [None] * len(tasks)

    def do(number: int) -> None:
        _meeting.set(place)
        try:
            found[number] = tasks[number]()
        except BaseException as error:
            errors[number] = error
        finally:
            place.leave()

    threads = [
        threading.Thread(target=copy_context().run, args=(do, number), daemon=True) for number in range(len(tasks))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return found
