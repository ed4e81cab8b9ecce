"""Hashes of what a dozen small jobs write, so that a refactoring can show that it changed no bit.

    python tests/bits.py FILE.json              run the jobs with the installed trajstitch, write their hashes
    python tests/bits.py FILE.json OTHER.json   run them and compare with the hashes of another version

`make bits REV=main~1` does both: it runs the jobs with that revision's code, then with the working tree's, on one
machine (hashes of two machines differ, since their processors round differently).
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 1500
"""Gradient steps of each model and policy: enough that models beat their baselines, so that jumps are made."""


def main() -> None:
    target, *others = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["MINARI_DATASETS_PATH"] = f"{folder}/store"
        found = {}
        for job in JOBS:
            start = time.monotonic()
            found |= {f"{job.__name__}/{name}": value for name, value in job().items()}
            print(f"{job.__name__}: {time.monotonic() - start:.1f} s", file=sys.stderr)
    target.write_text(json.dumps(found, indent=1) + "\n")
    for other in others:
        before = json.loads(other.read_text())
        differ = [name for name in {**before, **found} if before.get(name) != found.get(name)]
        for name in differ:
            print(f"{name}: {before.get(name)} -> {found.get(name)}")
        print(f"{len(found) - len(differ)} of {len(found)} hashes are the same")
        if differ:
            sys.exit(1)


def digest(*parts: Any) -> str:
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, np.ndarray):
            made.update(f"{part.dtype} {part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        else:
            made.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode())
    return made.hexdigest()


def of_data(data: Any) -> str:
    origin = data.provenance
    parts = [] if origin is None else [getattr(origin, item.name) for item in fields(origin)]
    return digest(data.fingerprint.encode(), *parts)


def of_policies(policies: Any) -> str:
    observations = np.random.default_rng(0).normal(size=(50, 11)).astype(np.float32)
    return digest(*(policy.act(observations) for policy in policies))


def reduced(config: Any) -> Any:
    """The config with fewer gradient steps, and small networks, wherever they stand."""
    if isinstance(config, dict):
        return {name: reduced(value) for name, value in config.items()}
    if not is_dataclass(config) or isinstance(config, type):
        return config
    small: dict[str, Any] = {"steps": STEPS, "value_steps": STEPS, "patience": STEPS, "hidden": (32, 32)}
    found = {item.name: getattr(config, item.name) for item in fields(config)}
    gates = ("quality", "min_predictability")  # of versions before the plan counted with predicted rewards
    changed = {
        name: small[name] if name in small else 0.0 if name in gates else reduced(value)
        for name, value in found.items()
    }
    if changed.get("margin") == 0:
        changed["margin"] = 64.0  # the paper's own lets no jump through on so little data
    if "radius" in changed:
        changed |= {"k": 16, "radius": None, "standardise": True}
    if "passes" in changed:
        changed["passes"] = 2
    if "critic_steps" in changed:
        changed["steps"] = 4 * STEPS  # the generator has a fifth of them
    if "learning_rate" in changed:
        changed["learning_rate"] = 1e-3
    return replace(config, **changed)


def hopper() -> Any:
    import trajstitch

    if not Path("hopper.npz").exists():
        trajstitch.save(trajstitch.collect(trajstitch.Collect("hopper/medium-replay", 5000)), "npz:hopper.npz")
    return trajstitch.load("npz:hopper.npz")


def collected() -> dict[str, str]:
    import trajstitch

    mixed = trajstitch.collect(trajstitch.Collect("walker2d/noisy-expert-10", 1500, seed=3))
    return {"hopper": of_data(hopper()), "noisy expert": of_data(mixed)}


def formats() -> dict[str, str]:
    """Each format: the bytes of the file, and the data that comes back."""
    import trajstitch

    data, found = hopper(), {}
    for uri, path in (
        ("npz:a.npz", "a.npz"),
        ("d4rl:a.hdf5", "a.hdf5"),
        ("table:a.parquet", "a.parquet"),
        ("table:a.csv", "a.csv"),
        ("minari:test/a-v0", "store/test/a-v0/data/main_data.hdf5"),
    ):
        trajstitch.save(data, uri)
        if not uri.startswith("minari"):  # whose groups carry the time they were made
            found[f"{uri} bytes"] = digest(Path(path).read_bytes())
        found[f"{uri} data"] = of_data(trajstitch.load(uri))
    found["inspect"] = digest(trajstitch.inspect(data))
    return found


def presets() -> dict[str, Any]:
    try:
        from trajstitch.stitching.config import PRESETS
    except ImportError:
        from trajstitch.stitching import PRESETS  # pyright: ignore[reportAttributeAccessIssue]
    return PRESETS


def stitched() -> dict[str, str]:
    """Each preset, at a reduced size; the paper's with two seeds."""
    import trajstitch

    found = {}
    for name, preset in presets().items():
        several: Any = {"seeds": 2} if name == "paper" else {}
        better: Any = trajstitch.stitch(hopper(), reduced(preset), **several)
        for number, data in enumerate(better if isinstance(better, list) else [better]):
            jumps = int(data.provenance.stitched.sum())
            found[f"{name} {number}, {jumps} jumps"] = of_data(data)
    return found


def policies() -> dict[str, str]:
    import trajstitch
    from trajstitch.policies.bc import BC, WeightedBC
    from trajstitch.policies.iql import IQL
    from trajstitch.policies.td3_bc import TD3BC

    found = {}
    for name, policy in {
        "bc": BC(standardise=False),
        "gaussian": BC(gaussian=True, standardise=True),
        "weighted-bc": WeightedBC(standardise=False),
        "td3-bc": TD3BC(),
        "iql": IQL(standardise=False),
    }.items():
        trained = trajstitch.train(hopper(), replace(reduced(policy), steps=400), seeds=2)
        found[name] = of_policies(trained)
        if name == "bc":
            found["returns"] = digest(trajstitch.evaluate(trained, hopper().metadata, episodes=2))
    return found


def command(*words: str, stop_when: Callable[[], bool] | None = None) -> str:
    process = subprocess.Popen(
        [sys.executable, "-m", "trajstitch", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while stop_when is not None and process.poll() is None:
        if stop_when():
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.02)
    out, err = process.communicate()
    if stop_when is None and process.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{err}")
    return out


def resumed() -> dict[str, str]:
    """A stitching and a training that are interrupted and go on."""
    import trajstitch

    mixed = trajstitch.collect(trajstitch.Collect("hopper/medium-expert", 10_000))
    trajstitch.save(mixed, "npz:mixed.npz")
    stitch = ("stitch", "npz:mixed.npz", "npz:better.npz", "--preset", "quick", "--run", "stitching")
    command(*stitch, stop_when=lambda: any(Path("stitching").glob("model-*")))
    command(*stitch, "--resume")
    train = (
        "train",
        "bc",
        "npz:hopper.npz",
        "--steps",
        "20000",
        "--seeds",
        "2",
        "--run",
        "training",
        "--no-standardise",
    )
    command(*train, stop_when=lambda: len(list(Path("training/checkpoints").glob("*"))) >= 2)
    command(*train, "--resume")
    files = sorted(Path("training/checkpoints").iterdir())
    better: Any = trajstitch.load("npz:better.npz")
    return {
        f"stitched, {better.provenance.stitched.sum()} jumps": of_data(better),
        "trained": digest(*(of_policies([trajstitch.load_policy(file, seed) for seed in (0, 1)]) for file in files)),
    }


def ladder() -> dict[str, str]:
    out = command(
        *("expert", "Pendulum-v1", "--steps", "2000", "--run", "expert", "--json"),
        *("--checkpoint-every", "400", "--episodes", "2", "--snapshot-every", "1000"),
    )
    return {"returns": digest(json.loads(out)["checkpoints"])}


JOBS = (collected, formats, stitched, policies, resumed, ladder)

if __name__ == "__main__":
    main()
