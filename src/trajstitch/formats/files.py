"""What formats whose data sets are single files have in common, and the door to the libraries that read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trajstitch.errors import InputError, did_you_mean
from trajstitch.storage import atomic


def stored_at(location: str) -> Path:
    """Return the file that a location names."""
    return Path(location)


def require_free(location: str, *, force: bool) -> None:
    """Raise unless the file may be written."""
    atomic.require_free(Path(location), force=force)


def require_readable(path: Path) -> None:
    """Raise unless `path` is a file that may be read."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path}: is a device or a pipe, not a file: save the data as a file first")
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path}: no such file{_hint(path)}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder: name a file in it") from error
    except PermissionError as error:
        raise InputError(f"{path}: no permission to read it") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror})") from error


@contextmanager
def library(where: str, fault: str = "is damaged") -> Iterator[None]:
    """Turn any error of a reading library into an InputError; `where` names the file and the part that is read.

    Only calls of the library belong within: errors of our own code must show.
    """
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{where} needs more memory than this machine has") from error
    except Exception as error:
        raise InputError(f"{where} {fault} ({reason_of(error)}): copy or download it again") from error


def reason_of(error: BaseException) -> str:
    """Return what a library's error says, without its class and call stack; the class if it says nothing."""
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text.strip().partition("\n")[0][:200] or type(error).__name__


def _hint(path: Path) -> str:
    folder = path.absolute().parent
    if not folder.is_dir():
        return f" (there is no folder {folder} either)"
    return did_you_mean(path.name, [entry.name for entry in folder.iterdir()])
