"""Folders that strangers made: a link in them leads to no file of somebody else, and nothing but files is opened."""

import os
from pathlib import Path

from trajstitch.errors import InputError


def require_no_way_out(folder: Path, what: str) -> None:
    """Raise if a link in the folder leads out of it, or if there is anything but files and folders.

    `what` names the folder in the error. The folder itself may be a link.
    """
    home, left = folder.resolve(), [folder]
    while left:
        try:
            found = list(os.scandir(left.pop()))
        except OSError:  # it says what is wrong when it is read
            continue
        for one in found:
            if one.is_symlink():
                _require_inside(Path(one.path), home, what)
            elif one.is_dir(follow_symlinks=False):
                left.append(Path(one.path))
            elif not one.is_file(follow_symlinks=False):
                raise InputError(f"{one.path}: is neither a file nor a folder: remove it")


def _require_inside(link: Path, home: Path, what: str) -> None:
    try:
        inside = link.resolve().is_relative_to(home)
    except (OSError, RuntimeError):  # links that lead to each other
        inside = False
    if not inside:
        raise InputError(f"{link}: is a link out of {what}, which is never followed: put what it leads to in its place")
