"""The flags that say how a data set is read, shared by every command that reads data."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from trajstitch.benchmark import sources
from trajstitch.data import environments
from trajstitch.data.mend import Missing
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns
from trajstitch.learning.bounds import Bounds
from trajstitch.progress import logger


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """How a data set is read."""

    columns: Columns = field(default_factory=Columns)
    """For table: URIs, what each column holds; what is not given is guessed from the columns' names."""
    columns_file: Path | None = None
    """A TOML file that says what each column holds, instead of single --columns flags."""
    missing: Missing | None = None
    """What to do about blank, NaN and infinite values and gaps in time. split: cut episodes there. interpolate: draw
    straight lines through up to 10 steps, split where more is missing. drop: leave the episodes out. If not given, such
    data is refused."""
    resample: Annotated[float, Bounds(0)] | None = None
    """New time between two steps in seconds (in the unit of the time column, if it holds numbers), for logs with times;
    larger means fewer steps. Observations are interpolated, actions averaged, rewards summed."""
    environment: str | None = None
    """Environment to evaluate in: a Gymnasium id such as Hopper-v5, or your own as MODULE:NAME, where NAME is a class
    or an id that the module registers. Only what you name here is imported. If not given, what the data names."""
    allow_large: bool = False
    """Load the data even if its file declares far more than it holds, as highly compressed files do."""
    allow_changed: bool = False
    """Load a file that trajstitch wrote even if its content has changed since, because you edited it yourself."""

    def mapping(self, uri: str) -> Columns | None:
        """Return the columns that the user gave for `uri`, or None."""
        given = self.columns != Columns()
        if given and self.columns_file is not None:
            raise InputError("give either `columns_file` or single `columns` flags, not both")
        found = Columns.from_toml(self.columns_file) if self.columns_file is not None else self.columns
        return _with_known_environment(found) if given or self.columns_file is not None else None

    def reading(self, uri: str) -> dict[str, Any]:
        """Return how the user wants `uri` to be read, as arguments of `sources.load`."""
        how = {"missing": self.missing, "resample": self.resample, "allow_changed": self.allow_changed or None}
        return {"columns": self.mapping(uri), **how}

    def load(self, uri: str, **options: Any) -> Trajectories:
        """Load `uri` as the user wants it to be read, with the environment that the user names."""
        data = sources.load(uri, allow_large=self.allow_large, **options, **self.reading(uri))
        return self.in_environment(data)

    def in_environment(self, data: Trajectories) -> Trajectories:
        """Return the data with the environment that the user names; one that can't be found is only warned of."""
        if self.environment is None:
            return data
        try:
            longest = int(data.lengths.max())
            return replace(data, metadata=environments.with_environment(data.metadata, self.environment, longest))
        except InputError as error:
            logger.warning(f"{error}: going on without it")
            return data


def _with_known_environment(columns: Columns) -> Columns:
    """Return the columns without an environment that can't be found, of which the user is warned."""
    if columns.environment is None:
        return columns
    try:
        environments.named(columns.environment)
    except InputError as error:
        logger.warning(f"{error}: going on without it")
        return replace(columns, environment=None)
    return columns
