"""How long loading and saving take, and how much memory, compared with plain calls that move the same bytes.

python benchmarks/io.py [--transitions 1000000] [--json FILE] [--write-docs]

Each measurement is a process of its own, and the libraries take turns, so that a busy machine slows all. The goals: at
most twice the time of the plain call, at most 2.5 times the data's size in memory.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np

MOST_TIME, MOST_MEMORY = 2.0, 2.5
OBSERVATION, ACTION = 17, 6
ID = "benchmark/ours-v0"
DOCS = Path(__file__).parents[1] / "docs" / "results" / "io.md"

JOBS = {
    "Minari load": ("trajstitch", "minari", "h5py"),
    "Minari save": ("trajstitch", "minari", "h5py"),
    "D4RL load": ("trajstitch", "h5py"),
    "D4RL save": ("trajstitch", "h5py"),
}
"""Each job and the libraries that do it, ours first."""


# What is measured: a function of the folder that holds (or gets) the files, and of the data to save


def minari_load_trajstitch(folder: Path, _: dict) -> object:
    import trajstitch

    return trajstitch.load(f"minari:{ID}")


def minari_load_minari(folder: Path, _: dict) -> object:
    import minari

    return list(minari.load_dataset(ID).iterate_episodes())


def minari_load_h5py(folder: Path, _: dict) -> object:
    with h5py.File(folder / ID / "data" / "main_data.hdf5") as file:
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        return [[np.asarray(group[name]) for name in names] for group in file.values()]


def minari_save_trajstitch(folder: Path, data: dict) -> None:
    import trajstitch

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    trajstitch.save(trajstitch.Trajectories(**data), "minari:benchmark/saved-v0")


def minari_save_minari(folder: Path, data: dict) -> None:
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    from trajstitch.data import spaces

    (folder / "data").mkdir()
    storage = MinariStorage.new(
        folder / "data", observation_space=spaces.vector(OBSERVATION), action_space=spaces.vector(ACTION)
    )
    storage.update_episodes(EpisodeBuffer(**episode) for episode in episodes(data))


def minari_save_h5py(folder: Path, data: dict) -> None:
    with h5py.File(folder / "main_data.hdf5", "w", track_order=True) as file:
        for number, episode in enumerate(episodes(data)):
            group = file.create_group(f"episode_{number}")
            for name, values in episode.items():
                group.create_dataset(name, data=values, chunks=True, maxshape=(None, *values.shape[1:]))


def d4rl_load_trajstitch(folder: Path, _: dict) -> object:
    import trajstitch

    return trajstitch.load(f"d4rl:{folder / 'ours.hdf5'}")


def d4rl_load_h5py(folder: Path, _: dict) -> object:
    with h5py.File(folder / "ours.hdf5") as file:
        names = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts")
        return [np.asarray(file[name]) for name in names]


def d4rl_save_trajstitch(folder: Path, data: dict) -> None:
    import trajstitch

    trajstitch.save(trajstitch.Trajectories(**data), f"d4rl:{folder / 'saved.hdf5'}")


def d4rl_save_h5py(folder: Path, data: dict) -> None:
    first = np.arange(len(data["rewards"])) + np.repeat(np.arange(len(data["offsets"]) - 1), np.diff(data["offsets"]))
    with h5py.File(folder / "saved.hdf5", "w") as file:
        file["observations"] = data["observations"][first]
        file["next_observations"] = data["observations"][first + 1]
        file["actions"], file["rewards"] = data["actions"], data["rewards"]
        file["terminals"], file["timeouts"] = data["terminated"], data["truncated"]


def episodes(data: dict):
    """The data as Minari's episodes."""
    for number, (start, stop) in enumerate(zip(data["offsets"], data["offsets"][1:], strict=False)):
        yield {
            "observations": data["observations"][start + number : stop + number + 1],
            "actions": data["actions"][start:stop],
            "rewards": data["rewards"][start:stop],
            "terminations": data["terminated"][start:stop],
            "truncations": data["truncated"][start:stop],
        }


def generate(transitions: int, length: int) -> dict:
    """Random arrays, made in place: nothing but the data itself counts as memory."""
    random = np.random.default_rng(0)
    offsets = np.append(np.arange(0, transitions, length), transitions)
    truncated = np.zeros(transitions, bool)
    truncated[offsets[1:] - 1] = True
    return {
        "observations": random.standard_normal(out=np.empty((transitions + len(offsets) - 1, OBSERVATION))),
        "actions": random.standard_normal(out=np.empty((transitions, ACTION))),
        "rewards": random.standard_normal(out=np.empty(transitions)),
        "terminated": np.zeros(transitions, bool),
        "truncated": truncated,
        "offsets": offsets,
    }


# How it is measured


def call(what: str, transitions: int, length: int, store: Path) -> dict[str, float]:
    """Do one thing in a process of its own. This one stays small: a child's memory starts at its parent's peak."""
    command = [sys.executable, __file__, f"--transitions={transitions}", f"--length={length}", f"--only={what}"]
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(store)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{what} failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def prepare(transitions: int, length: int, store: Path) -> dict[str, float]:
    """Write the files that are loaded."""
    import trajstitch

    data = trajstitch.Trajectories(**generate(transitions, length))
    trajstitch.save(data, f"minari:{ID}")
    trajstitch.save(data, f"d4rl:{store / 'ours.hdf5'}")
    return {}


def measure(job: str, side: str, transitions: int, length: int, store: Path) -> dict[str, float]:
    """Warm up the imports on three steps, then do the real thing, once."""
    run: Callable[[Path, dict], object] = globals()[f"{job} {side}".lower().replace(" ", "_")]
    import minari  # noqa: F401

    import trajstitch

    with TemporaryDirectory(dir=store) as scratch:
        trajstitch.save(trajstitch.Trajectories(**generate(3, 2)), f"d4rl:{scratch}/warm.hdf5")
        trajstitch.load(f"d4rl:{scratch}/warm.hdf5")
    os.sync()
    before = peak()
    data = generate(transitions, length) if job.endswith("save") else {}
    with TemporaryDirectory(dir=store) as scratch:
        start = time.perf_counter()
        kept = run(store if job.endswith("load") else Path(scratch), data)
        seconds = time.perf_counter() - start
        del kept
    size = transitions * (OBSERVATION + ACTION + 1) * 8
    return {"seconds": seconds, "memory": (peak() - before) / size}


def peak() -> int:
    """Return the most memory this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=1000, help="steps per episode")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--write-docs", action="store_true", help=f"write {DOCS.name} of the documentation")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        job, _, side = options.only.partition("/")
        setting = options.transitions, options.length, Path(os.environ["MINARI_DATASETS_PATH"])
        print(json.dumps(measure(job, side, *setting) if side else prepare(*setting)))
        return
    results: dict[str, dict[str, list[dict[str, float]]]] = {
        job: {side: [] for side in sides} for job, sides in JOBS.items()
    }
    with TemporaryDirectory() as folder:
        store = Path(folder)
        call("prepare", options.transitions, options.length, store)
        for repeat in range(options.repeats):
            for job, sides in JOBS.items():
                for side in sides if repeat % 2 else reversed(sides):
                    results[job][side].append(call(f"{job}/{side}", options.transitions, options.length, store))
                print(f"{repeat + 1}/{options.repeats} {job}", file=sys.stderr)
    rows = summarise(results)
    report = table(rows)
    print(report)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        setting = {"transitions": options.transitions, "length": options.length, "machine": machine()}
        options.json.write_text(json.dumps({**setting, "results": rows, "runs": results}, indent=2))
    if options.write_docs:
        DOCS.parent.mkdir(parents=True, exist_ok=True)
        DOCS.write_text(page(report, options.transitions, options.length, options.repeats))


def summarise(results: dict[str, dict[str, list[dict[str, float]]]]) -> list[dict]:
    rows = []
    for job, sides in results.items():
        seconds = {side: statistics.median(run["seconds"] for run in runs) for side, runs in sides.items()}
        memory = {side: statistics.median(run["memory"] for run in runs) for side, runs in sides.items()}
        ours, *others = sides
        rows.append(
            {
                "job": job,
                "seconds": seconds,
                "memory": memory,
                "time_ratio": {other: seconds[ours] / seconds[other] for other in others},
                "met": max(seconds[ours] / seconds[other] for other in others) <= MOST_TIME
                and memory[ours] <= MOST_MEMORY,
            }
        )
    return rows


def table(rows: list[dict]) -> str:
    from trajstitch.storage.markdown import markdown_table

    heads = ("", "seconds", "against Minari", "against h5py", "memory / data", "Minari's", "h5py's", "goals met")
    body = []
    for row in rows:
        ratio, memory = row["time_ratio"], row["memory"]
        ratios = [f"{ratio[side]:.2f} ×" if side in ratio else "–" for side in ("minari", "h5py")]
        held = [f"{memory[side]:.2f}" if side in memory else "–" for side in ("trajstitch", "minari", "h5py")]
        met = "yes" if row["met"] else "no"
        body.append([row["job"], f"{row['seconds']['trajstitch']:.2f}", *ratios, *held, met])
    return markdown_table(heads, body)


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((line.partition(": ")[2] for line in info.read_text().splitlines() if "model name" in line), model)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("minari", "h5py", "numpy"))
    python = f"Python {platform.python_version()}, HDF5 {h5py.version.hdf5_version}"
    return f"{model}, {os.cpu_count()} cores; {python}, {versions}"


def page(report: str, transitions: int, length: int, repeats: int) -> str:
    setting = f"--transitions {transitions} --length {length} --repeats {repeats}"
    return f"""# Loading and saving: time and memory

`python benchmarks/io.py {setting} --write-docs` wrote this page.

{transitions:,} transitions in episodes of {length:,} steps, {OBSERVATION} observations and {ACTION} actions as float64:
{transitions * (OBSERVATION + ACTION + 1) * 8 / 1e6:,.0f} MB. Medians of {repeats} runs, each a process of its own, the
libraries taking turns. "Against Minari" is the time over that of `minari.load_dataset` and reading every episode, or of
Minari's storage writing them; "against h5py" over that of plain h5py calls that move the same arrays. Memory is the
most that the process held beyond its imports, over the data's size; for saving, the data itself is 1 of it.

The goals: at most {MOST_TIME:g} × the time of either, at most {MOST_MEMORY:g} × the data's size.

{report}

Machine: {machine()}.
"""


if __name__ == "__main__":
    main()
