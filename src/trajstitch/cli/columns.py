"""The flags that say what a table's columns mean, shared by every command that reads one."""

from dataclasses import dataclass, field
from pathlib import Path

from trajstitch.errors import InputError
from trajstitch.formats.table import Columns


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    columns: Columns = field(default_factory=Columns)
    """For table: URIs, which column is what; guessed from their names where not given."""
    columns_file: Path | None = None
    """A small TOML file that says which column is what, instead of single --columns flags."""

    def mapping(self, uri: str) -> Columns | None:
        """The mapping for `uri`: None unless it is a table or the user gave one."""
        given = self.columns != Columns()
        if given and self.columns_file is not None:
            raise InputError("give --columns-file or single --columns flags, not both")
        if self.columns_file is not None:
            return Columns.from_toml(self.columns_file)
        return self.columns if given else None
