"""`make matrix`: each Python that is there, with the lowest and the newest release of each dependency, and some tests.

The lowest is the lowest that `pyproject.toml` allows and that has a wheel for this Python. What only the tests need is
the newest. Needs uv, and Python alone besides.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = ("lowest-direct", "highest")
TESTS = (
    "test_formats.py",
    "test_minari.py",
    "test_table.py",
    "test_losses.py",
    "test_planning.py",
    "test_stitching.py",
    "test_cli.py",
)
"""Every format, every model and policy, a whole stitching, and the command line."""
SHOWN = ("numpy", "scipy", "jax", "equinox", "optax", "jaxtyping", "gymnasium", "minari", "h5py", "pyarrow")


def run(*command: str, where: Path = ROOT) -> tuple[int, str]:
    """Return a command's exit code and what it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=where)
    return done.returncode, done.stdout


def last_line(text: str) -> str:
    """Return the line that says most, in a form that a table can hold."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    worst = [line for line in lines if re.match(r"(error|ERROR|FAILED|E  )", line)]
    return (worst or lines or ["nothing printed"])[-1 if not worst else 0].replace("|", "\\|")[:200]


def find(python: str) -> str | None:
    """Return the path of an interpreter, of uv's or of pyenv's; None if there is none. None is downloaded."""
    for path in sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python")):
        return str(path)
    code, found = run("uv", "python", "find", "--no-python-downloads", python)
    return None if code else found.strip()


def tried(python: str, resolution: str, tests: list[str]) -> dict[str, str]:
    """Return what came of one Python with one resolution."""
    row = {"Python": python, "dependencies": resolution.removesuffix("-direct")}
    interpreter = find(python)
    if interpreter is None:
        return row | {"outcome": "no such interpreter here"}
    with tempfile.TemporaryDirectory(prefix="matrix-") as name:
        folder = Path(name)
        own = str(folder / "bin" / "python")
        pins = str(folder / "pins.txt")
        resolve = ["uv", "pip", "compile", "-q", "--python", interpreter, "--only-binary", ":all:"]
        steps = (
            ("uv", "venv", "-q", "--allow-existing", "--python", interpreter, name),
            (*resolve, "--resolution", resolution, "--extra", "mujoco", "pyproject.toml", "-o", pins),
            ("uv", "pip", "install", "-q", "--python", own, "-c", pins, "-e", ".[dev]"),
        )
        for step in steps:
            code, printed = run(*step)
            if code:
                return row | {"outcome": f"can't be installed: {last_line(printed)}"}
        version = run(own, "-c", "import platform; print(platform.python_version())")[1].strip()
        pinned = dict(
            line.split("==") for line in Path(pins).read_text().splitlines() if re.match(r"[\w.-]+==\S+$", line)
        )
        row |= {"Python": version, **{shown: pinned.get(shown, "?") for shown in SHOWN}}
        started = time.monotonic()
        # beartype warns of the type hints of old releases of optax, and a warning is an error in tests.
        hints = "ignore::beartype.roar.BeartypeDecorHintPep585DeprecationWarning"
        command = ("env", "JAX_PLATFORMS=cpu", own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", hints)
        code, printed = run(*command, *(f"tests/{one}" for one in tests))
        passed = re.search(r"(\d+) passed", printed)
        outcome = f"{passed[1] if passed else 0} passed" if code == 0 else f"fails: {last_line(printed)}"
        return row | {"outcome": outcome, "seconds": f"{time.monotonic() - started:.0f}"}


def page(rows: list[dict[str, str]], tests: list[str]) -> str:
    """Return the page as Markdown."""
    head = ["Python", "dependencies", "outcome", *SHOWN, "seconds"]
    table = [head, ["---"] * len(head), *([row.get(name, "") for name in head] for row in rows)]
    return "\n".join(
        [
            "# Python and dependency versions",
            "",
            "Each Python with the lowest release of every dependency that `pyproject.toml` allows and that has a wheel "
            "for it, and with the newest. What only tests need is the newest. Tests: " + ", ".join(tests) + ".",
            "",
            *(f"| {' | '.join(line)} |" for line in table),
            "",
            "Made by `make matrix`.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, required=True, help="the Markdown to write")
    parser.add_argument("--pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--resolutions", nargs="*", default=RESOLUTIONS, choices=RESOLUTIONS)
    parser.add_argument("--tests", nargs="*", default=TESTS)
    asked = parser.parse_args()
    rows = []
    for python in asked.pythons:
        for resolution in asked.resolutions:
            rows.append(tried(python, resolution, asked.tests))
            print(rows[-1], flush=True)
            asked.page.write_text(page(rows, asked.tests))
    sys.exit(any(row["outcome"].startswith(("fails", "can't")) for row in rows))


if __name__ == "__main__":
    main()
