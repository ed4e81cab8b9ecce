"""The methods that `learn` compares: cloning and Q-learning, of the logged and of the stitched data."""

from dataclasses import dataclass
from typing import Any, Literal

from trajstitch.policies import algorithm_class

Source = Literal["logged", "stitched", "union"]

DESCRIPTIONS: dict[Source, str] = {
    "logged": "logged",
    "stitched": "stitched",
    "union": "logged + stitched",
}


@dataclass(frozen=True)
class Method:
    """An algorithm and what it learns from."""

    name: str
    """Also of its run's folder."""
    algorithm: str
    data: Source
    """stitched: changed episodes in the original ones' place, for clones; union: beside them, for learners of Q."""
    top: float = 1.0
    """Fraction of the episodes, the best ones."""

    @property
    def learns_from(self) -> str:
        """Which data, in a few words."""
        return DESCRIPTIONS[self.data] + (f", best {self.top:.0%}" if self.top < 1 else "")

    @property
    def imitates_log(self) -> bool:
        """Whether its policies are to act as the logged ones do: other methods are to act better, so otherwise."""
        return self.algorithm == "bc" and self.data == "logged" and self.top == 1

    def configured(self, steps: int) -> Any:
        """Return the algorithm with this many gradient steps."""
        return algorithm_class(self.algorithm)(steps=steps)


METHODS = (
    Method("bc", "bc", "logged"),
    Method("best-tenth", "bc", "logged", 0.1),
    Method("ts-bc", "bc", "stitched"),
    Method("ts-best-tenth", "bc", "stitched", 0.1),
    Method("iql", "iql", "logged"),
    Method("ts-iql", "iql", "union"),
)
