"""The flags that say how a data set is read, shared by every command that reads data."""

import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """Flags of commands that read a data set."""

    columns: Columns = field(default_factory=Columns)
    """For table: URIs, what each column holds; what is not given is guessed from the columns' names."""
    columns_file: Path | None = None
    """A TOML file that says what each column holds, instead of single --columns flags."""

    allow_large: bool = False
    """Load the data even if its file declares far more than it holds, as highly compressed files do."""

    def mapping(self, uri: str) -> Columns | None:
        """Return the columns that the user gave for `uri`, or None."""
        given = self.columns != Columns()
        if given and self.columns_file is not None:
            raise InputError("give either `columns_file` or single `columns` flags, not both")
        found = Columns.from_toml(self.columns_file) if self.columns_file is not None else self.columns
        import_for(found.environment, "columns.environment")
        return found if given or self.columns_file is not None else None


def import_for(environment: str | None, flag: str) -> None:
    """Import what stands before the colon in an environment's id: the user's own word, as for gymnasium.make."""
    module, colon, _ = (environment or "").rpartition(":")
    if colon and module not in sys.modules:
        try:
            import_module(module)
        except (ImportError, ValueError) as error:
            raise InputError(f"`{flag}`: {module!r} can't be imported ({error})") from error
