"""The stages of `learn` in a run's folder. It holds, beside what every run's does:

plan.json            what was measured on this machine, and what was planned
training-plan.json   what is trained in the time that stitching left
seconds.json         how long each stage took
logged.npz           the episodes learned from, if these are not the source as it is
stitch/              the run of the stitching
stitched.npz         its data, for clones: changed episodes in the original ones' place
union.npz            its data, for learners of Q: changed episodes beside the original ones
bc/, ts-bc/, ...     the run of each method's policies, with scores or an estimate
policy.safetensors   the policy that was chosen
report.html          the page
result.json          the table, and why that policy was chosen

A run that is resumed goes on after the last stage, and within a training after the last state, that it holds.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trajstitch import formats
from trajstitch.benchmark import sources
from trajstitch.data import environments
from trajstitch.data.environments import normalised
from trajstitch.data.source_facts import source_facts
from trajstitch.data.stitch_record import StitchRecord
from trajstitch.data.trajectories import Trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.compare import LOGGED
from trajstitch.evaluation.compare_runs import compare_runs
from trajstitch.evaluation.evaluate import Evaluate, evaluate, keep_scores
from trajstitch.evaluation.scores import Interval, mean_score
from trajstitch.policies.action_error import MOST_STEPS, action_errors
from trajstitch.policies.policy import Policy, load_policies, save_policies
from trajstitch.policies.train import HELD_OUT, split_episodes, train_run
from trajstitch.progress import in_stage, logger
from trajstitch.report.page import write_page
from trajstitch.stitching.config import StitchConfig
from trajstitch.stitching.guards import hidden_state
from trajstitch.stitching.pipeline import StitchJob, stitch_together
from trajstitch.stitching.result import assemble
from trajstitch.storage.checksums import checksum_of_files
from trajstitch.storage.runs import Run, damaged
from trajstitch.storage.trees import REMOVE
from trajstitch.workflow import verdict
from trajstitch.workflow.budget import PolicyPlan, StitchPlan, Timings, due, in_words, plan_policies, plan_stitching
from trajstitch.workflow.choice import Choice, Row, choose_by_estimates, choose_by_rollouts
from trajstitch.workflow.methods import METHODS, Source
from trajstitch.workflow.parts import STITCHING
from trajstitch.workflow.timing import measure

STAGES = ("plan", "stitch", "train", "evaluate", "page")
FEWEST_TO_HOLD_OUT = 10
"""Episodes below which none is held out."""


@dataclass(frozen=True)
class Settings:
    """What a user asks for; what is None is planned."""

    budget: float
    """Seconds."""
    seed: int = 0
    config: StitchConfig | None = None
    steps: int | None = None
    seeds: int | None = None
    episodes: int | None = None
    compare: bool = False
    """Only clone, so that all time goes into the verdict on stitching."""


class Known(NamedTuple):
    """A data set that methods learn from, and what runs record about it."""

    data: Trajectories
    facts: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Job:
    """One `learn`, in a run's folder."""

    run: Run
    whole: Trajectories
    source: str | None
    """The data as the user named it; None if it was given itself."""
    reading: dict[str, Any]
    """How it was read, as arguments of `sources.load`."""
    play: bool
    """Whether there is an environment to roll out in."""
    settings: Settings

    def work(self) -> None:
        """Do all stages that are not done."""
        learned, held_out = self.whole, None
        if not self.play and len(self.whole) >= FEWEST_TO_HOLD_OUT:
            learned, held_out = split_episodes(self.whole, 1.0, HELD_OUT)
        logged = self._logged(learned)
        with self._stage("plan"):
            timings, stitching = self._plan(learned)
        known: dict[Source, Known] = {"logged": logged}
        with self._stage("stitch"):
            if stitching is not None:
                known |= self._stitch(logged, stitching)
        plan = self._training_plan(timings, "union" in known)
        with self._stage("train"):
            folders = self._train(known, plan, held_out)
        with self._stage("evaluate"):
            rows, choice, unit, paid, horizon = self._evaluate(folders, plan, held_out)
        with self._stage("page"):
            self._page(folders, *(one for one in (paid, choice.sentence) if one is not None))
        policy = load_policies(folders[choice.name])[choice.seed]
        chosen = self.run.path("policy.safetensors")
        with self.run.writing():
            save_policies([policy], chosen)
        stitched = "stitched" in known
        result = {
            "table": [replace(row, chosen=row.name == choice.name).to_json() for row in rows],
            "unit": unit,
            "horizon": horizon,
            "chosen": choice.name,
            "why": choice.sentence,
            "verdict": paid,
            "data": "stitched.npz" if stitched else logged.facts["source"],
            **({"columns": None} if stitched else sources.recorded_reading(logged.facts)),
            "fingerprint": (known["stitched"] if stitched else logged).data.fingerprint,
            "policy": checksum_of_files(chosen),
            "seconds": self._spent(),
        }
        self.run.write_json("result", result)
        logger.info(f"took {in_words(self._spent())} of {in_words(self.settings.budget)}")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Say which stage it is and what is left in all; record the time it takes, also if it is interrupted."""
        number, of = STAGES.index(name) + 1, len(STAGES)
        if number > 1:
            left = self._expected() - self._spent()
            when = f"{in_words(left)} left in all, as planned" if left > 0 else f"{in_words(-left)} over the plan"
            logger.info(f"stage {number} of {of}, {name}: {when}")
        start = time.monotonic()
        try:
            with in_stage(number, of, name):
                yield
        finally:
            before = self._seconds()
            self.run.write_json("seconds", before | {name: before.get(name, 0.0) + time.monotonic() - start})

    def _seconds(self) -> dict[str, float]:
        if not self.run.has("seconds"):
            return {}
        with damaged(self.run.path("seconds.json")):
            return {name: float(took) for name, took in self.run.read_json("seconds").items()}

    def _expected(self) -> float:
        """Return how long all of it takes, as planned; the budget if nothing was planned."""
        stored = self.run.read_json("plan") if self.run.has("plan") else {}
        with damaged(self.run.path("plan.json")):
            return float(stored.get("expected", self.settings.budget))

    def _spent(self) -> float:
        return sum(self._seconds().values())

    def _logged(self, data: Trajectories) -> Known:
        """Return the episodes learned from; they are kept in the run if they are not the source as it is."""
        if data is self.whole and self.source is not None:
            return Known(data, sources.describe_source(self.source, data=data, **self.reading))
        return self._kept("logged", data)

    def _kept(self, name: str, data: Trajectories) -> Known:
        path = self.run.path(f"{name}.npz").resolve()
        uri = f"npz:{path}"
        if not formats.exists(uri):
            with self.run.writing():
                formats.save(data, uri)
        elif formats.load(uri, allow_nonfinite=True).fingerprint != data.fingerprint:
            raise InputError(f"{path}: is other data than this run has made: {REMOVE}")
        # In messages it is no longer the source that it was made from.
        return Known(replace(data, metadata=replace(data.metadata, source=uri)), source_facts(data, uri))

    # Planning

    def _plan(self, data: Trajectories) -> tuple[Timings | None, StitchPlan | StitchConfig | None]:
        """Return how fast this machine is and how the data is stitched; log the whole plan, once."""
        asked = self.settings
        if asked.config is not None and asked.steps is not None:
            return None, asked.config
        if not self.run.has("plan"):
            logger.info("timing a few hundred steps of each learner, to plan what fits into the budget")
            start = time.monotonic()
            timings = measure(data, asked.budget, data.metadata if self.play else None, clones_only=asked.compare)
            spent = time.monotonic() - start
            stitching = None if asked.config is not None else plan_stitching(asked.budget, timings, data.steps, spent)
            expected = self._tell(timings, stitching, spent, len(data) > 1)
            stored = {"timings": timings.to_json(), "stitching": None if stitching is None else asdict(stitching)}
            self.run.write_json("plan", {**stored, "expected": expected})
        stored = self.run.read_json("plan")
        with damaged(self.run.path("plan.json")):
            planned = None if stored["stitching"] is None else StitchPlan(**stored["stitching"])
            return Timings.from_json(stored["timings"]), asked.config or planned

    def _tell(self, timings: Timings, stitching: StitchPlan | None, spent: float, several: bool) -> float:
        """Log what is planned, and whether the budget is too small for it; return how long it takes in all."""
        budget, lines, expected = self.settings.budget, [], spent
        if stitching is not None:
            share = "" if stitching.share == 1 else f" with {stitching.share:.0%} of its steps"
            lines.append(f"stitch by the preset {stitching.preset}{share}, {in_words(stitching.seconds)}")
            expected += stitching.seconds
        plan = self._override(plan_policies(budget - expected, timings, stitching is not None))
        lines.append(f"{self._described(plan, stitching is not None)}, {in_words(plan.seconds)}")
        expected += plan.seconds
        logger.info(f"plan for {in_words(budget)}: {'; then '.join(lines)}; in all about {in_words(expected)}")
        if stitching is None and self.settings.config is None and several:
            logger.warning("the data is too large to be stitched within the budget, so it is not: give more `budget`")
        if expected > budget:
            logger.warning(
                f"the budget is too small: this is the least that makes sense, and takes about {in_words(expected)}"
            )
        return expected

    def _described(self, plan: PolicyPlan, stitched: bool) -> str:
        """Return in words what is trained and how it is evaluated."""
        trained = [
            f"{', '.join(method.name for method in due(stitched, name))} with {steps:,} steps"
            for name, steps in plan.steps.items()
        ]
        how = f"2 × {plan.episodes} episodes of each policy" if self.play else "estimates of their returns"
        return f"train {plan.seeds} policies each of {' and '.join(trained)}; {how}"

    def _override(self, plan: PolicyPlan) -> PolicyPlan:
        """Return the plan with what the user asked for."""
        asked = self.settings
        steps = {name: count for name, count in plan.steps.items() if name == "bc" or not asked.compare}
        return replace(
            plan,
            steps=steps if asked.steps is None else dict.fromkeys(steps, asked.steps),
            seeds=asked.seeds or plan.seeds,
            episodes=asked.episodes or plan.episodes,
        )

    def _training_plan(self, timings: Timings | None, stitched: bool) -> PolicyPlan:
        """Return what is trained in the time that is left; once it is planned, a resumed run keeps to it."""
        if not self.run.has("training-plan"):
            if timings is None:
                plan = PolicyPlan.fixed(self.settings.steps or 1)
            else:
                plan = plan_policies(self.settings.budget - self._spent(), timings, stitched)
            plan = self._override(plan)
            logger.info(f"now: {self._described(plan, stitched)}")
            self.run.write_json("training-plan", asdict(plan))
        stored = self.run.read_json("training-plan")
        with damaged(self.run.path("training-plan.json")):
            return PolicyPlan(**stored)

    # The stages

    def _stitch(self, logged: Known, plan: StitchPlan | StitchConfig) -> dict[Source, Known]:
        """Return the stitched data, and it beside the logged data; nothing if no episode was changed."""
        config, name = (plan, "own") if isinstance(plan, StitchConfig) else (plan.config, plan.preset)
        config, seed = config.for_data(logged.data.metadata), self.settings.seed
        facts = {"target": "npz:../stitched.npz", "seed": seed, "seeds": 1, "preset": name}
        facts |= {**logged.facts, "stitching": asdict(config)}
        run = Run.start(self.run.path(STITCHING), "stitch", facts, resume=True, free=("source",))
        done = stitch_together([StitchJob(logged.data, config, seed, run=run)])[0][0]
        run.write_json("summary", {"unchanged_because": done.reason})
        union = assemble(logged.data, [done.after], keep_original=True, doubts=hidden_state(done.reports))
        origin = {name: logged.facts[name] for name in ("source", "fingerprint")} | sources.reading_from(logged.facts)
        found: dict[Source, Known] = {"stitched": self._kept("stitched", sources.with_source(done.after, **origin))}
        record = StitchRecord.of(done.after.metadata)
        if record is None or record.changed == 0:
            logger.info("stitching changed nothing, so policies learn from the logged data alone")
            return found
        found["union"] = self._kept("union", sources.with_source(union, **origin))
        return found

    def _train(self, known: Mapping[Source, Known], plan: PolicyPlan, held_out: Trajectories | None) -> dict[str, Path]:
        """Train the policies of each method; return the folder of each. A method that can't learn is left out."""
        methods = [
            one for one in METHODS if one in due("union" in known, one.algorithm) and one.algorithm in plan.steps
        ]
        folders: dict[str, Path] = {}
        learned: dict[tuple[str, str], str] = {}
        for number, method in enumerate(methods, 1):
            data, facts = known[method.data]
            episodes = method.algorithm, (data.best(method.top) if method.top < 1 else data).fingerprint
            if (same := learned.setdefault(episodes, method.name)) != method.name:
                logger.info(f"{method.name} would learn from the same episodes as {same}, and is left out")
                continue
            logger.info(f"policies {number} of {len(methods)}: {method.name} ({method.learns_from})")
            folder = self.run.path(method.name)
            algorithm, seeds = method.configured(plan.steps[method.algorithm]), (plan.seeds, self.settings.seed)
            # Held out are logged episodes, good and bad: they show what a clone of all of them can predict, no other.
            apart = held_out if method.imitates_log else None
            options = {"top": method.top, "hold_out": 0.0, "held_out": apart, "source": facts}
            try:
                with in_stage(number, len(methods), method.learns_from):
                    train_run(data, algorithm, folder, *seeds, **options, resume=True)
            except InputError as error:
                logger.warning(f"{method.name} is left out: {error}")
            else:
                folders[method.name] = folder
        if not folders:
            raise InputError(f"{self.run.folder}: no policy could be trained; the warnings above say why")
        return folders

    def _evaluate(
        self, folders: dict[str, Path], plan: PolicyPlan, held_out: Trajectories | None
    ) -> tuple[list[Row], Choice, str, str | None, int | None]:
        """Return what is known about each method, the choice, the results' unit, the verdict on stitching, and the
        steps that estimates are about.
        """
        policies = {name: load_policies(folder) for name, folder in folders.items()}
        errors = self._action_errors(policies, self.whole if held_out is None else held_out)
        if self.play:
            return *self._roll_out(folders, policies, errors, plan.episodes), None
        comparison = compare_runs(list(folders.values()), self.whole, held_out)
        for folder in list(folders.values())[1:]:  # each run's own part comes first, as `evaluate` writes it
            own = sorted(comparison["runs"], key=lambda one: one["run"] != str(folder))
            Run.open(folder).write_json("estimate", {**comparison, "runs": own})
        verdicts = {one["name"]: one["verdict"] for one in comparison["verdicts"] if one["than"] == LOGGED}
        results = {
            one["name"]: None if one["estimated"] is None else Interval(**one["estimated"])
            for one in comparison["estimates"]
        }
        rows = [self._data_row(Interval(**comparison["logged"]))]
        rows += [self._row(name, results[name], errors[name], verdicts[name]) for name in folders]
        unit = "estimated return"
        paid = verdict.by_estimates(comparison, unit)
        return rows, choose_by_estimates(comparison, errors), unit, paid, int(comparison["horizon"])

    def _roll_out(
        self,
        folders: dict[str, Path],
        policies: dict[str, list[Policy]],
        errors: dict[str, list[float]],
        episodes: int,
    ) -> tuple[list[Row], Choice, str, str | None]:
        """Roll out every policy: the first half of the episodes is reported, the second half chooses."""
        known, config = self.whole.metadata, Evaluate(episodes=episodes, last=True)
        everyone = [policy for group in policies.values() for policy in group]
        returns = evaluate(everyone, known, 2 * episodes, config.seed)
        groups = np.split(returns, len(policies))
        for (name, group), own in zip(policies.items(), groups, strict=True):
            keep_scores(Run.open(folders[name], "train"), config, [group], own[None, :, :episodes])
        scores = {name: normalised(own, known) for name, own in zip(policies, groups, strict=True)}
        reported = {name: own[:, :episodes] for name, own in scores.items()}
        choosing = {name: own[:, episodes:] for name, own in scores.items()}
        rows = [self._data_row(mean_score(normalised(self.whole.returns, known)))]
        rows += [self._row(name, mean_score(reported[name]), errors[name]) for name in folders]
        unit = "return" if environments.reference(known) is None else "score"
        choice = choose_by_rollouts(choosing, reported, errors, self.settings.seed)
        return rows, choice, unit, verdict.by_rollouts(reported, unit)

    def _data_row(self, result: Interval) -> Row:
        return Row(LOGGED, "", result, None)

    def _row(self, name: str, result: Interval | None, errors: list[float], than_logged: str | None = None) -> Row:
        method = next(one for one in METHODS if one.name == name)
        return Row(name, method.learns_from, result, float(np.mean(errors)), than_logged)

    def _action_errors(self, policies: dict[str, list[Policy]], data: Trajectories) -> dict[str, list[float]]:
        """Return how far each policy's actions are from logged ones."""
        steps = np.zeros(data.steps, bool)
        steps[np.random.default_rng(0).permutation(data.steps)[:MOST_STEPS]] = True
        return {name: action_errors(group, data, steps)["action_error"] for name, group in policies.items()}

    def _page(self, folders: dict[str, Path], sentence: str, more: str | None = None) -> None:
        stitching = self.run.path(STITCHING)
        runs = [*([stitching] if (stitching / "run.json").is_file() else []), *folders.values()]
        try:
            write_page(runs, self.run.path("report.html"), sentence, more)
        except InputError as error:
            logger.warning(f"the page can't be written: {error}")
