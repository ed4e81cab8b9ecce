"""`make fuzz-readers`: atheris changes the bytes of sample files, guided by what the readers' code then does.

Of any file a reader returns data or raises an `InputError` of one line, in time. Everything else is a finding:
it is printed, and the file is kept. Each reader runs in a process of its own: `python -m fuzz_readers --reader npz`.
"""

# atheris has no types, and is installed by `make fuzz-readers` alone.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

READERS = {"npz": "npz:made.npz", "d4rl": "d4rl:made.hdf5", "csv": "table:made.csv", "parquet": "table:made.parquet"}
"""Each format that is one file, with the scheme and the name of a sample."""
SLOWEST = 10
"""Seconds that a file under 10 MB may take."""


def make_samples(reader: str, folder: Path) -> None:
    """Write small files that a reader reads: of data as logged, of stitched data, and as other people save it."""
    import numpy as np

    import trajstitch
    from random_data import random_data
    from soak.samples import SAMPLES

    data = random_data(np.random.default_rng(0), coarse=False)
    trajstitch.save(data[np.flatnonzero(data.lengths > 0)], uri_of(reader, folder))
    for number, sample in enumerate(sample for kind, sample in SAMPLES.items() if kind.split()[0] == reader):
        with tempfile.TemporaryDirectory() as name:
            sample.write(Path(name))
            (folder / f"{number}").write_bytes((Path(name) / sample.files[0]).read_bytes())


def check(uri: str) -> None:
    """Load a file, as it is and although it has changed. Any error but an InputError of one line is a finding."""
    from trajstitch import formats
    from trajstitch.errors import InputError

    for allow_changed in (False, True):
        try:
            formats.load(uri, allow_changed=allow_changed)
        except InputError as error:
            if "\n" in str(error):
                raise AssertionError(f"an error of several lines: {error}") from error
        else:
            return


def uri_of(reader: str, folder: Path) -> str:
    scheme, name = READERS[reader].split(":")
    return f"{scheme}:{folder / name}"


def one_input(uri: str) -> Callable[[bytes], None]:
    """Return the function that atheris calls with bytes."""
    path = Path(uri.partition(":")[2])

    def call(content: bytes) -> None:
        path.write_bytes(content)
        check(uri)

    return call


def fuzz(reader: str, seconds: int, findings: Path) -> None:
    """Fuzz one reader in this process; it ends with the first finding."""
    import atheris

    # Only what is ours is instrumented: the readers. JAX and Arrow would make every call slow.
    with atheris.instrument_imports(include=["trajstitch.formats"]):
        from trajstitch import formats

        for module in formats.FORMATS.values():
            __import__(module)
    findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        corpus = Path(name)
        make_samples(reader, corpus)
        arguments = [
            f"-max_total_time={seconds}",
            f"-timeout={SLOWEST}",
            "-rss_limit_mb=3000",
            "-max_len=100000",
            "-seed=1",
            f"-artifact_prefix={findings}/{reader}-",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *arguments, str(corpus)], one_input(uri_of(reader, findings)))
        atheris.Fuzz()


def outcomes(seconds: int, findings: Path, readers: list[str]) -> dict[str, dict[str, Any]]:
    """Fuzz each reader in a process of its own, and return how many files were tried and what was found."""
    found = {}
    for reader in readers:
        command = [sys.executable, "-m", "fuzz_readers", "--reader", reader, "--seconds", str(seconds)]
        command += ["--findings", str(findings)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        lines = done.stdout.splitlines()
        tried = [line.split()[-1] for line in lines if line.startswith("stat::number_of_executed_units")]
        if done.returncode == 0:  # the file that was tried last is one that failed only if the process says so
            Path(uri_of(reader, findings).partition(":")[2]).unlink(missing_ok=True)
        kept = [
            path.name
            for path in sorted(findings.iterdir())
            if path.name.startswith((f"{reader}-", READERS[reader].partition(":")[2]))
        ]
        found[reader] = {"tried": int(tried[0]) if tried else 0, "failed": len(kept) or int(done.returncode != 0)}
        if found[reader]["failed"]:
            found[reader] |= {"files": kept, "end": lines[-40:]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz_readers", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--reader", choices=READERS, help="only this one, in this process")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where files that fail are kept")
    asked = parser.parse_args()
    if asked.reader is not None:
        fuzz(asked.reader, asked.seconds, asked.findings)
        return
    found = outcomes(asked.seconds, asked.findings, list(READERS))
    for reader, one in found.items():
        print(f"{reader}: {one['tried']:,} files tried, {one['failed']} failed")
        print("\n".join(one.get("end", [])))
    sys.exit(any(one["failed"] for one in found.values()))


if __name__ == "__main__":
    main()
