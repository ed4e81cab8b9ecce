"""Environments whose own errors are one line: whoever made a data set chose their arguments."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from trajstitch.errors import InputError


class Guarded(gymnasium.Wrapper):
    """An environment that raises InputError where it fails in a reset or a step."""

    def __init__(self, env: gymnasium.Env, made_by: EnvSpec) -> None:
        super().__init__(env)
        self._made_by = made_by

    @property
    def spec(self) -> EnvSpec | None:
        """How to make the environment, without this wrapper."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with self._told("reset"):
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._told("step"):
            return self.env.step(action)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as error:  # the environment's own
            found = self._made_by
            given = f", with the arguments {str(found.kwargs)[:300]}" if found.kwargs else ""
            raise InputError(
                f"{found.id} fails in a {what}{given} ({type(error).__name__}: {error}): check that it runs by itself"
            ) from error
