"""`learn`: the best policy that a log supports, within a time budget."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trajstitch.benchmark import sources
from trajstitch.data import environments
from trajstitch.data.checks import check, require_trajectories
from trajstitch.data.mend import Missing
from trajstitch.data.source_facts import absolute, action_bounds
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.evaluate import environment_sizes
from trajstitch.formats.columns import Columns, require_columns
from trajstitch.learning.bounds import Bounds, check_bounds, check_seeds
from trajstitch.policies.policy import Policy, load_policy
from trajstitch.progress import logger
from trajstitch.stitching.config import Preset, StitchConfig, preset
from trajstitch.storage.runs import Run, damaged
from trajstitch.workflow.budget import parse_budget
from trajstitch.workflow.choice import Row
from trajstitch.workflow.export import chosen_file
from trajstitch.workflow.stages import Job, Settings

CODE = """\
import numpy as np
import trajstitch
policy = trajstitch.load_policy({path!r})
observation = np.zeros({size})  # yours, with its columns in the order of the data
print(policy.act(observation))
"""


@dataclass(frozen=True, eq=False)
class Learned:
    """What `learn` found."""

    policy: Policy
    """The policy that was chosen; it acts with NumPy alone."""
    data: Trajectories
    """The stitched data; the logged data, if there was no time to stitch it."""
    table: tuple[Row, ...]
    """Each method's score or estimate, with its interval, after those of the data."""
    unit: str
    """What the table's results are: scores, returns or estimated returns."""
    chosen: str
    """The method of the policy."""
    why: str
    """Why it was chosen, in a sentence or two."""
    verdict: str | None
    """Whether stitching pays, in a sentence; None if nothing was stitched."""
    folder: Path | None
    """The run's folder, if one was named."""
    seconds: float
    """How long all of it took."""
    horizon: int | None = None
    """The steps that estimated returns are about; None where policies were rolled out."""

    @property
    def report(self) -> Path | None:
        """The page; None without a run, or if it could not be written."""
        return self._file("report.html")

    @property
    def policy_file(self) -> Path | None:
        return self._file("policy.safetensors")

    @property
    def code(self) -> str:
        """The lines of Python that load the policy and run it."""
        return CODE.format(path=str(self.policy_file), size=self.policy.observation_size)

    def _file(self, name: str) -> Path | None:
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None

    @classmethod
    def read(cls, run: Run) -> "Learned":
        """Return what a finished run found."""
        stored = run.read_json("result")
        with damaged(run.path("result.json")):
            rows = tuple(Row.from_json(row) for row in stored["table"])
            place, reading = str(stored["data"]), sources.reading_from(stored)
            text = {name: str(stored[name]) for name in ("unit", "chosen", "why")}
            seconds, horizon = float(stored["seconds"]), stored.get("horizon")
            verdict = None if stored["verdict"] is None else str(stored["verdict"])
            fingerprint, policy = str(stored["fingerprint"]), str(stored["policy"])
        if place == "stitched.npz":
            place = f"npz:{run.path(place)}"
        data = sources.load(place, **reading)
        if data.fingerprint != fingerprint:
            raise InputError(f"{place}: is other data than {run.folder} was made from or has made: start a new run")
        chosen = load_policy(chosen_file(run, policy))
        return cls(chosen, data, rows, **text, verdict=verdict, folder=run.folder, seconds=seconds, horizon=horizon)


def learn(
    data: Trajectories | str | Path,
    budget: str = "30m",
    *,
    run: str | Path | None = None,
    resume: bool = False,
    environment: str | None = None,
    columns: Columns | None = None,
    missing: Missing | None = None,
    resample: float | None = None,
    allow_large: bool = False,
    allow_changed: bool | None = None,
    seed: int = 0,
    config: Preset | StitchConfig | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    episodes: int | None = None,
    compare: bool = False,
) -> Learned:
    """Return the best policy that the data supports, found within about the time `budget`.

    The data is checked and stitched. Policies are cloned from the logged and the stitched data, and from the best tenth
    of each; where time allows, they are learned by IQL too. They are rolled out where there is an environment, and
    chosen and reported by different episodes. Without one, their returns are estimated from the data. A short timing of
    this machine plans what fits into the budget.

    Args:
        data: What was logged: trajectories, a URI, a path or a built-in set's name.
        budget: About how long it may take, such as 5m, 30m or 2h.
        run: Folder that keeps everything, with a page that shows it.
        resume: Go on after the last finished stage of the run in that folder.
        environment: Environment to roll out in, in place of the one that the data names: a Gymnasium id such as
            Hopper-v5, or your own as MODULE:NAME, where NAME is a class or an id that the module registers.
        columns: What the columns of a table hold.
        missing: What mends NaN, infinite and blank values and gaps in time of data that is named: "split",
            "interpolate" or "drop". If not given, they raise an error that counts them.
        resample: A new time between two steps in seconds, for named data with times.
        allow_large: Load data whose file declares far more than it holds.
        allow_changed: Load a file that trajstitch wrote and that has changed since.
        seed: Seed of the stitching, and the first of the policies'.
        config: The stitching's preset or config, in place of what is planned.
        steps: Gradient steps of every policy, in place of what is planned.
        seeds: Policies of each method, in place of what is planned.
        episodes: Episodes of each policy to choose by, in place of what is planned.
        compare: Only clone, so that all of the time goes into the verdict on the original data, its best tenth and the
            stitched data under equal settings.
    """
    require_columns(columns)
    settings = replace(_settings(budget, seed, config, steps, seeds, episodes), compare=compare)
    job: dict[str, Any] = {"budget": budget, "environment": environment, "settings": asdict(settings)}
    if isinstance(data, str | Path):
        data = sources.uri_of(data)
        reading = {"missing": missing, "resample": resample, "allow_changed": allow_changed}
        job |= {name: value for name, value in reading.items() if value is not None}
        job |= {"source": absolute(data), "columns": None if columns is None else asdict(columns)}
        load = partial(sources.load, data, columns=columns, allow_large=allow_large, **reading)
    else:
        require_trajectories(data)
        if given := [name for name, one in (("missing", missing), ("resample", resample)) if one is not None]:
            raise InputError(f"`{given[0]}` goes with data that is named: give it to trajstitch.load instead")
        job["fingerprint"] = data.fingerprint
        load = partial(replace, data)
    if run is None:
        if resume:
            raise InputError("`resume=True` continues a run: name its folder with `run`")
        with tempfile.TemporaryDirectory(prefix="trajstitch-") as folder:
            return replace(_learn(load, Path(folder) / "run", settings, job, environment), folder=None)
    return _learn(load, Path(run), settings, job, environment, resume=resume)


def _settings(
    budget: str,
    seed: int,
    config: Preset | StitchConfig | None,
    steps: int | None,
    seeds: int | None,
    episodes: int | None,
) -> Settings:
    """Return the settings, checked before anything is loaded."""
    check_seeds(seed, 1 if seeds is None else seeds)
    for name, value in (("steps", steps), ("episodes", episodes)):
        if value is not None:
            Bounds(1).check(name, value, whole=True)
    if config is not None:
        config = preset(config) if isinstance(config, str) else config
        if not isinstance(config, StitchConfig):
            raise InputError(f"`config` must be a preset's name or a StitchConfig, not {config!r}")
        config = replace(config, keep_original=False, stitchings=1)  # both kinds of data are made from one stitching
        check_bounds(config)
    return Settings(parse_budget(budget), seed, config, steps, seeds, episodes)


def _learn(
    load: Callable[[], Trajectories],
    folder: Path,
    settings: Settings,
    job: dict[str, Any],
    environment: str | None,
    *,
    resume: bool = False,
) -> Learned:
    if resume and (folder / "result.json").is_file():
        return Learned.read(Run.start(folder, "learn", job, resume=True))
    data, play = _with_environment(load(), environment)
    if data.has_jumps:
        raise InputError(
            f"{data.metadata.source or data.metadata.name}: is stitched already, and learning stitches itself: give it "
            "what was logged"
        )
    run = Run.start(folder, "learn", job, resume=resume)
    run.keep_job({"fingerprint": data.fingerprint, "action_bounds": action_bounds(data)})
    _tell(data)
    Job(run, data, job.get("source"), sources.reading_from(job), play, settings).work()
    return Learned.read(run)


def _with_environment(data: Trajectories, environment: str | None) -> tuple[Trajectories, bool]:
    """Return the data with the environment that was named, and whether there is one to roll out in."""
    if environment is not None:
        longest = int(data.lengths.max(initial=0)) or None
        data = replace(data, metadata=environments.with_environment(data.metadata, environment, longest))
    known = environments.environment_id(data.metadata)
    if known is None:
        return data, False
    try:
        sizes = environment_sizes(data.metadata)
        if sizes != (data.observation_size, data.action_size):
            raise InputError(
                f"{known} has {sizes[0]} observations and {sizes[1]} actions, but the data {data.observation_size} and "
                f"{data.action_size}"
            )
    except InputError as error:
        if environment is not None:
            raise
        logger.warning(f"returns are estimated, since nothing can be rolled out: {error}")
        return data, False
    return data, True


def _tell(data: Trajectories) -> None:
    """Log what the data is, and what its checks find, in two lines."""
    returns = data.returns
    logger.info(
        f"{data.metadata.source or data.metadata.name}: {len(data):,} episodes, {data.steps:,} steps, mean return "
        f"{returns.mean():,.4g}, best {returns.max():,.4g}"
    )
    findings = check(data)
    bad = [f"{one.check}: {one.detail}" for one in findings if one.verdict == "bad"]
    notes = sum(one.verdict == "note" for one in findings)
    more = f"{notes} note{'s' * (notes != 1)}; `trajstitch inspect` shows them" if notes else "all fine"
    if bad:
        logger.warning(f"checks: {'; '.join(bad)} ({more})")
    else:
        logger.info(f"checks: {more}")
