"""`trajstitch stitch SRC DST`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.table import Table
from tyro.conf import AvoidSubcommands, Positional, arg

from trajstitch import formats
from trajstitch.benchmark import sources
from trajstitch.cli.charts import chart
from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.data.environments import normalised, reference
from trajstitch.data.source_facts import as_recorded
from trajstitch.data.stitch_record import StitchRecord, describe_stitching
from trajstitch.data.summary import BINS
from trajstitch.data.trajectories import Trajectories
from trajstitch.engines.ray_cluster import RayCluster, RaySettings
from trajstitch.engines.workers import LOCAL
from trajstitch.errors import InputError, as_flags
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.progress import logger
from trajstitch.report.card import card, card_path, write_card
from trajstitch.stitching.config import PRESETS, Preset, StitchConfig, preset
from trajstitch.stitching.layout import MAKES, place
from trajstitch.stitching.pipeline import Stitched, StitchJob, stitch_together
from trajstitch.storage.atomic import telling
from trajstitch.storage.checksums import checksum_of_files
from trajstitch.storage.runs import Run, slug
from trajstitch.storage.stopping import resumable

COMMON = ("preset", "config.keep_original", "config.stitchings", "seed", "run", "resume", "force", "json")


@dataclass(frozen=True, kw_only=True)
class Command(ColumnFlags):
    """Rebuild each trajectory by jumping, where it pays, to observed states of others; save the better data set.

    To begin with, SRC and DST are enough. The result is for cloning; for IQL, TD3+BC and other learners of Q, give
    --keep-original. Other flags are settings of the preset: `trajstitch stitch --preset paper --help-all`.

    For cloning: trajstitch stitch npz:log.npz npz:better.npz --preset quick

    For a learner of Q: trajstitch stitch npz:log.npz npz:more.npz --keep-original

    Several: trajstitch stitch npz:log.npz npz:better-{seed}.npz --preset paper --seeds 3
    """

    source: Annotated[Positional[str], arg(metavar="SRC")]
    """The data set, as a URI or the name of a built-in set; it is never changed."""
    target: Annotated[Positional[str], arg(metavar="DST")]
    """Where the better data set goes: a URI or a file's path; {seed} in it stands for the seed's number."""
    preset: Preset = "default"
    """Settings to start from: default, the best we know; quick, minutes on a laptop; paper, the paper's method and
    hyper-parameters. What the last departs in, docs/method.md lists; it is slow."""
    seed: Annotated[int, SEED] = 0
    """Seed of the models, the value function and the latents."""
    seeds: Annotated[int, Bounds(1)] = 1
    """Number of data sets to make, one for each seed from SEED on, which share the models of SEED (--stitchings makes
    one data set with several models); DST must contain {seed}. Needs greedy passes or sampled latents, as in the preset
    paper: a plan alone is the same for every seed."""
    run: Path | None = None
    """Folder that keeps the models, the graph and the results; runs/stitch-SRC-PRESET-seed-SEED if not given."""
    resume: bool = False
    """Continue the run in that folder after its last finished stage; DST may be another one."""
    force: bool = False
    """Overwrite the target if it exists, and without --resume the run too."""
    engine: Literal["local", "ray"] = "local"
    """Where the graph is built: in this process, or in blocks on the workers of a Ray cluster (docs/cluster.md)."""
    ray: RaySettings = field(default_factory=RaySettings)
    """What tasks on the cluster are given."""
    json: bool = False
    """Print JSON instead of text."""
    config: Annotated[AvoidSubcommands[StitchConfig], arg(name="")] = field(default_factory=StitchConfig)

    @property
    def numbers(self) -> range:
        """The seeds' numbers."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def targets(self) -> list[str]:
        """Where each seed's data set goes."""
        if self.seeds > 1 and "{seed}" not in self.target:
            raise InputError(
                f"{self.target} names one data set, but {self.seeds} seeds make {self.seeds}: say where the seed's "
                "number goes, as in npz:better-{seed}.npz"
            )
        return [self.target.replace("{seed}", str(seed)) for seed in self.numbers]

    @property
    def folder(self) -> Path:
        several = f"-to-{self.numbers[-1]}" if self.seeds > 1 else ""
        return self.run or Path("runs") / slug(f"stitch-{self.source}-{self.preset}-seed-{self.seed}{several}")

    def execute(self) -> None:
        run, done = self.stitch()
        facts = [summary(one) for one in done]
        for seed, one in zip(self.numbers, facts, strict=True):
            run.write_json("summary" if self.seeds == 1 else f"{place(run, seed).own}summary", one)
        if self.json:
            named = zip(self.numbers, self.targets, facts, strict=True)
            seeds = [{"seed": seed, "saved": target, **one} for seed, target, one in named]
            print_json({"run": str(run.folder), **(seeds[0] if self.seeds == 1 else {"seeds": seeds})})
            return
        names = [f"Seed {seed}" for seed in self.numbers] if self.seeds > 1 else [""]
        show(run, done, facts, names, self.targets)

    def stitch(self) -> tuple[Run, list[Stitched]]:
        """Run the job, or resume it, and save what it makes; return the outcome for each seed."""
        self.config.check_seeds(self.numbers)
        recorded = self._recorded()
        saved = [target for target in self.targets if self._is_saved(target, recorded)]
        for target in self.targets:
            sources.require_apart(self.source, target)
            if target not in saved:
                formats.require_free(target, force=self.force)
        if self.config.plan is not None:
            for name in ("passes", "value"):
                if getattr(self.config, name) != getattr(PRESETS[self.preset], name):
                    raise InputError(
                        f"`{name}` goes with greedy passes, as in `preset=paper`; {self.preset!r} plans instead"
                    )
        workers = RayCluster(self.ray) if self.engine == "ray" else LOCAL
        reading = self.reading(self.source)
        data = self.load(self.source)
        config = self.config.for_data(data.metadata)
        facts = {"target": self.target, "seed": self.seed, "seeds": self.seeds, "preset": self.preset}
        source = sources.describe_source(self.source, data=data, **reading)
        facts |= as_recorded(self.folder, source) if self.resume else source
        facts["stitching"] = asdict(config)
        again = {"resume": self.resume, "force": self.force, "makes": MAKES}
        run = Run.start(self.folder, "stitch", facts, **again, free=("source", "target"))
        job = StitchJob(data, config, self.seed, self.seeds, run, workers=workers)
        with resumable(f"{run.folder}: stopped; the same command with --resume continues after what is finished"):
            return run, self._finish(job, run, recorded, saved, reading)

    def _finish(
        self, job: StitchJob, run: Run, recorded: dict[str, str], saved: list[str], reading: dict[str, Any]
    ) -> list[Stitched]:
        """Make what is missing in the run, and save it."""
        done = stitch_together([job])[0]
        for seed, one, target in zip(self.numbers, done, self.targets, strict=True):
            after = sources.with_source(one.after, self.source, fingerprint=job.data.fingerprint, **reading)
            file = card_path(target, run, place(run, seed).own if self.seeds > 1 else "")
            if target in saved:
                logger.info(f"{target} was written before and is left as it is; --force writes it again")
            else:
                self._save(after, target, run, recorded)
            if target not in saved or not file.exists():
                write_card(file, card(one.before, after, one.reports, run.facts, uri=target, reason=one.reason))
        return done

    def _save(self, after: Trajectories, target: str, run: Run, recorded: dict[str, str]) -> None:
        """Write a target; its checksum is recorded just before it takes its place."""

        def record(fresh: Path, place: Path) -> None:
            if place.resolve() == formats.stored_at(target):
                recorded[target] = checksum_of_files(fresh)
                run.write_json("saved", recorded)

        with telling(record):
            formats.save(after, target, force=self.force)

    def _recorded(self) -> dict[str, str]:
        """Return the checksums of the targets that the run has written, or was about to."""
        if not self.resume or self.force or not (self.folder / "saved.json").is_file():
            return {}
        run = Run.open(self.folder, "stitch")
        return {target: str(found) for target, found in run.read_json("saved").items()}

    def _is_saved(self, target: str, recorded: dict[str, str]) -> bool:
        """Return whether the run has written a target before; raise if what is there now is something else."""
        if target not in recorded or not formats.exists(target):
            return False
        if checksum_of_files(formats.stored_at(target)) == recorded[target]:
            return True
        raise InputError(
            f"{target} is not what {self.folder} has written there: choose another target, or write it again with "
            "`force=True`"
        )


def defaults(arguments: Sequence[str]) -> Command:
    """Return the flags' defaults: those of the preset that the arguments name."""
    chosen = "default"
    for flag, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if flag.startswith("--preset"):
            chosen = flag.partition("=")[2] or value
    config = preset(chosen)
    if config.plan is None and any(flag.startswith("--plan.") for flag in arguments):
        planning = ", ".join(name for name, known in PRESETS.items() if known.plan is not None)
        raise InputError(f"`plan` goes with presets that plan ({planning}); the preset {chosen!r} makes greedy passes")
    made = Command(source="", target="", preset=chosen, config=config)  # pyright: ignore[reportArgumentType]
    for required in ("source", "target"):
        object.__setattr__(made, required, tyro.MISSING)  # has no default, in tyro's terms
    return made


def summary(done: Stitched) -> dict[str, Any]:
    """Return what changed, as plain JSON values."""
    origin = done.after.provenance
    return {
        "before": _facts(done.before),
        "after": _facts(done.after),
        "consists_of": describe_stitching(done.after),
        "stitched_steps": 0 if origin is None else int(origin.stitched.sum()),
        "passes": done.passes,
        "unchanged_because": done.reason,
        "columns": done.columns,
        "models": [asdict(report) for report in done.reports],
        "seconds": done.seconds,
    }


def _facts(data: Trajectories) -> dict[str, Any]:
    returns = data.returns
    top = np.sort(returns)[-max(1, round(0.1 * len(returns))) :]
    return {
        "episodes": len(data),
        "steps": data.steps,
        "mean_return": float(returns.mean()),
        "corrected_mean_return": float(data.corrected_returns.mean()),
        "top_return": float(top.mean()),
        "mean_length": float(data.lengths.mean()),
        "score": float(normalised(returns.mean(), data.metadata)) if reference(data.metadata) else None,
    }


def show(
    run: Run, done: Sequence[Stitched], facts: Sequence[dict[str, Any]], names: Sequence[str], targets: list[str]
) -> None:
    """Print the passes and the returns before and after, for each seed if there are several."""
    out = stdout()
    for name, one in zip(names, facts, strict=True):
        if name:
            out.print(name, style="bold")
        out.print(passes(one))
        out.print()
    sets = [("before", done[0].before)]
    sets += [(f"after{name and f', {name.lower()}'}", one.after) for name, one in zip(names, done, strict=True)]
    low, high = (pick(pick(data.returns) for _, data in sets) for pick in (min, max))
    for title, data in sets:
        counts, _ = np.histogram(data.returns, BINS, (low, high if high > low else low + 1))
        out.print(f"Returns {title}")
        for line in chart({"counts": counts.tolist(), "low": float(low), "high": float(high)}, out.width):
            out.print(line, markup=False)
        out.print()
    for name, one, target in zip(names, facts, targets, strict=True):
        before, after = one["before"], one["after"]
        score = "" if after["score"] is None else f" (score {before['score']:.1f} → {after['score']:.1f})"
        out.print(
            f"{name and f'{name}: '}Mean return of the data {before['mean_return']:,.0f} → "
            f"{after['mean_return']:,.0f}{corrected(after)}{score}; "
            f"{one['stitched_steps'] / max(after['steps'], 1):.2%} of the steps are jumps. Saved {target}: "
            f"{one['consists_of']}",
            soft_wrap=True,
        )
    if done[0].reason is not None:
        out.print(f"THE DATA IS UNCHANGED: {as_flags(done[0].reason)}", soft_wrap=True)
    out.print(f"The run is in {run.folder}", soft_wrap=True)
    record = StitchRecord.of(done[0].after.metadata)
    policy = "iql" if record is not None and record.kept_original else "bc"
    out.print(f"Train a policy on it with: trajstitch train {policy} {targets[0]}", soft_wrap=True)


def corrected(facts: dict[str, Any]) -> str:
    """Return the mean return with the costs that cut-off trajectories have not paid, where it differs."""
    mean = facts["corrected_mean_return"]
    if f"{mean:,.0f}" == f"{facts['mean_return']:,.0f}":
        return ""
    return f" ({mean:,.0f} with the costs that trajectories cut off early would still pay)"


def passes(facts: dict[str, Any]) -> Table:
    """Return a table of what each pass did."""
    before = facts["before"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "rebuilt", "accepted", "jumps", "return", "best 10 %", "length", "states kept"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    row = (before["mean_return"], before["top_return"], before["mean_length"])
    table.add_row("logged", "", "", "", *(f"{value:,.0f}" for value in row), "100.0 %")
    count: dict[int | None, int] = {}
    for one in facts["passes"]:
        seed = one.get("seed")
        count[seed] = count.get(seed, 0) + 1
        table.add_row(
            f"{'' if seed is None else f'seed {seed}, '}pass {count[seed]}",
            f"{one['proposed']:,}",
            f"{one['accepted']:,}",
            f"{one['jumps']:,}",
            *(f"{one[name]:,.0f}" for name in ("mean_return", "top_return", "mean_length")),
            f"{one['states_kept']:.1%}".replace("%", " %"),
        )
    return table
