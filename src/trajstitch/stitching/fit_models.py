"""Fit the models that stitching needs: the inverse, the reward, and one for each jump test."""

from typing import Any

from jaxtyping import PRNGKeyArray

from trajstitch.data.column_roles import ColumnRoles
from trajstitch.data.trajectories import Trajectories
from trajstitch.learning.fit_report import FitReport
from trajstitch.models.inverse import fit_inverse
from trajstitch.models.reward import fit_reward
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.graph import Models


def fit_model(
    config: StitchConfig, name: str, data: Trajectories, key: PRNGKeyArray, roles: ColumnRoles
) -> tuple[Any, FitReport]:
    """Fit one of the models that stitching needs: `inverse`, `reward`, or a jump test's by the test's name."""
    if name == "inverse":
        return fit_inverse(config.inverse, data, key)
    if name == "reward":
        return fit_reward(config.reward, data, key)
    return config.tests[name].fit(data, key, roles)


def untrained_models(config: StitchConfig, data: Trajectories, key: PRNGKeyArray) -> Models:
    """Return models of the shapes that fitting gives, to read trained ones into."""
    tests = {name: test.untrained(data, key) for name, test in config.tests.items()}
    return Models(config.inverse.init(key, data), config.reward.untrained(key, data), tests)


def model_of(models: Models, name: str) -> Any:
    """Return the model of this name."""
    return models.tests[name] if name in models.tests else getattr(models, name)
