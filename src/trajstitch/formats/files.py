"""Opening a file that a user named: one clear line when it can't be read."""

import difflib
from pathlib import Path

from trajstitch.errors import InputError


def require_readable(path: Path) -> None:
    """Raise unless `path` is a file that may be read."""
    try:
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: no such file{_nearest(path)}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder: name the file in it") from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error


def _nearest(path: Path) -> str:
    folder = path.absolute().parent
    if not folder.is_dir():
        return f" (there is no folder {folder} either)"
    match = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
