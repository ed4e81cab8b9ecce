"""The flags that say what the columns of a table hold, shared by every command that reads data."""

from dataclasses import dataclass, field
from pathlib import Path

from trajstitch.errors import InputError
from trajstitch.formats.columns import Columns


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """Flags for table: URIs."""

    columns: Columns = field(default_factory=Columns)
    """For table: URIs, what each column holds; what is not given is guessed from the columns' names."""
    columns_file: Path | None = None
    """A TOML file that says what each column holds, instead of single --columns flags."""

    def mapping(self, uri: str) -> Columns | None:
        """Return the columns that the user gave for `uri`, or None."""
        given = self.columns != Columns()
        if given and self.columns_file is not None:
            raise InputError("give either `columns_file` or single `columns` flags, not both")
        if self.columns_file is not None:
            return Columns.from_toml(self.columns_file)
        return self.columns if given else None
