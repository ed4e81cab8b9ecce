"""The data set that a run was given: what the run notes of it, and how it is found again."""

from dataclasses import asdict
from typing import Any

from trajstitch import formats
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.storage.runs import Run


def load(uri: str, columns: Columns | None = None) -> Trajectories:
    """Load a data set by its URI, or a built-in set by its name."""
    return formats.load(uri, columns=columns)


def describe_source(uri: str, columns: Columns | None, data: Trajectories) -> dict[str, Any]:
    """What a run's configuration says of its data."""
    return {
        "source": uri,
        "columns": None if columns is None else asdict(columns),
        "transitions": data.steps,
        "mean_return": float(data.returns.mean()),
        "fingerprint": data.fingerprint,
    }


def reload_source(run: Run) -> Trajectories:
    """The data that a run was given; raises where it has changed since."""
    config = run.facts["config"]
    columns = None
    if config["columns"] is not None:
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config["columns"].items()
        }
        columns = Columns(**given)
    data = formats.load(config["source"], columns=columns)
    if data.fingerprint != config["fingerprint"]:
        raise InputError(
            f"{config['source']} has changed since {run.folder} was made from it: it had {config['transitions']:,} "
            f"steps and a mean return of {config['mean_return']:g}, and has {data.steps:,} and {data.returns.mean():g}"
        )
    return data
