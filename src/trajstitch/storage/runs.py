"""A run: a folder with a job's config, versions, metrics, models and results, from which the job can resume.

    run.json        the job's kind, config and command; versions and machine; the run folder's format; what the job
                    depends on, such as the data's fingerprint
    metrics.jsonl   one JSON object per line, appended while the job runs
    *.json          results and finished stages
    *.safetensors   models, training states and graphs

A job locks its folder, so that no other works in it at the same time. Everything but a new line of the metrics is
written whole or not at all: if a stage's file exists, the stage is done. Every file and every line of the metrics has a
checksum, in which the run and the file's place take part: one that has changed since, or that another run made, is
refused. No link in the folder may lead out of it.
"""

import json
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from trajstitch.errors import InputError, JobError
from trajstitch.storage.atomic import PREFIX, replacing, require_free
from trajstitch.storage.checksums import checksum, sealed, unsealed
from trajstitch.storage.circumstances import command_line, machine, versions
from trajstitch.storage.links import require_no_way_out
from trajstitch.storage.locks import hold, lost
from trajstitch.storage.tensors import read_tensors, save_tensors
from trajstitch.storage.trees import REMOVE, tensors_of, tree_from

RUN_FORMAT = 3
"""Version of the layout of run folders. Raise it when runs written before can no longer be read."""

LOCK = f"{PREFIX}lock"
"""The file in a run's folder that is locked while a job works in it."""

LIST = "list"
"""The key of a list in a JSON file, which holds an object."""

AnyRun = TypeVar("AnyRun", bound="Run")
T = TypeVar("T")


class Run:
    """A job's folder: `start` makes one or resumes it, `open` reads an existing one."""

    def __init__(self, folder: Path, facts: dict[str, Any], root: Path | None = None) -> None:
        self.folder = folder
        self.facts = facts
        self.root = folder if root is None else root
        """The folder with run.json: this one, or that which it is a part of."""

    @classmethod
    def start(
        cls: type[AnyRun],
        folder: Path,
        kind: str,
        config: dict[str, Any],
        *,
        resume: bool = False,
        force: bool | None = None,
        makes: Collection[str] = (),
        command: str | None = None,
        free: Collection[str] = (),
    ) -> AnyRun:
        """Make a new run, or with `resume` continue an existing one of the same kind and config.

        Settings that are `free` may have changed since. With `force`, and without `resume`, a run of the same kind that
        is there is started again: first the files that match a pattern in `makes`, which such runs make, are removed.
        `force` is None where a user can't ask for that. `command` is what a user types to run the job again: this
        process's command line if not given.
        """
        config = json.loads(json.dumps(config))
        again = bool(force) and not resume and (folder / "run.json").is_file()
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file: `run` must be a folder")
        if not _is_new(folder) and not again:
            _require_resume(folder, resume, force)
            cls.open(folder, kind)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: can't be made ({error.strerror or error}): choose another `run`") from error
        require_no_way_out(folder, "the run's folder")
        run = cls(folder, {})
        hold(folder / LOCK, run, str(folder))
        if again:
            _require_kind(run.read_json("run", advice="choose another `run`"), folder, kind)
            _require_outside(folder, config.get("source"))
            _remove_made(folder, makes)
        elif not _is_new(folder):  # looked at again: only now nobody else can change it
            _require_resume(folder, resume, force)
            run.facts = cls.open(folder, kind).facts
            _tell_versions(run.facts, folder)
            before = run.facts["config"]
            if (other := _difference({**before, **{name: config.get(name) for name in free}}, config)) is not None:
                raise InputError(
                    f"{folder} was started with {other}: resume it with the same settings, or choose another `run`"
                )
            if before != config:
                run.facts = {**run.facts, "config": {**before, **config}}
                run.write_json("run", run.facts)
            return run
        facts = {
            "format": RUN_FORMAT,
            "kind": kind,
            "id": _id(kind, {name: value for name, value in config.items() if name not in free}),
            "config": config,
            "versions": versions(),
            "machine": machine(),
            "command": command or command_line(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        write_json(run.path("run.json"), sealed(facts))
        run.facts = facts
        return run

    @classmethod
    def open(cls: type[AnyRun], folder: Path, kind: str | None = None) -> AnyRun:
        """Open an existing run; raise if it isn't of this `kind` (if given) or was made by an incompatible version."""
        if not (folder / "run.json").is_file():
            raise InputError(f"{folder}: not the folder of a run (it holds no run.json)")
        require_no_way_out(folder, "the run's folder")
        run = cls(folder, {})
        run.facts = run.read_json("run", advice="start a new run")
        _require_format(run.facts, folder)
        for name in ("config", "job"):
            if not isinstance(run.facts.get(name, {} if name == "job" else None), dict):
                raise InputError(f"{folder / 'run.json'}: holds no {name}: start a new run")
        if kind is not None:
            _require_kind(run.facts, folder, kind)
        return run

    @property
    def config(self) -> dict[str, Any]:
        """What the job depends on: as given to `start`, and as `keep_job` has recorded it."""
        return {**self.facts["config"], **self.facts.get("job", {})}

    def fact(self, name: str, kind: type[T] | tuple[type, ...]) -> T:
        """Return a part of the config; raise if it is missing or of another kind."""
        value = self.config.get(name)
        if not isinstance(value, kind):
            raise InputError(f"{self.folder / 'run.json'}: its config has no usable {name!r}: start a new run")
        return value  # pyright: ignore[reportReturnType]

    def keep_job(self, job: dict[str, Any], **others: Any) -> None:
        """Record what this run's job is; raise if the run already holds another job. `others` are only recorded."""
        job = json.loads(json.dumps(job, default=str))
        before = self.facts.get("job")
        if before is None:
            others = {name: value for name, value in others.items() if name not in self.facts["config"]}
            self.facts = {**self.facts, "job": {**job, **others}}
            if not self.facts["config"]:  # only now it is known what the run is for
                self.facts["id"] = _id(str(self.facts.get("kind")), job)
            self.write_json("run", self.facts)
        elif (other := _difference({name: before.get(name) for name in job}, job)) is not None:
            raise InputError(f"{self.folder} holds another job, with {other}: choose another `run`")

    def path(self, name: str) -> Path:
        return self.folder / name

    def part(self, name: str) -> "Run":
        """Return a folder in this one as a run of the same job, whose files are this run's too."""
        return Run(self.path(name), {**self.facts, "id": self.place(name)}, self.root)

    def place(self, name: str) -> str:
        """Return what the file of this name belongs to: this run, and the place in it."""
        return "" if name == "run" else f"{self.facts.get('id', '')}/{name}"

    def require_there(self) -> None:
        """Raise if the folder was removed, or replaced by another, while the job works in it."""
        if lost(self.root / LOCK) or not (self.root / "run.json").is_file():
            raise JobError(f"{self.root} was removed while the job was working in it: start it again")

    def require_writable(self) -> None:
        """Raise if nothing can be written into the folder, so that a user learns it before the work."""
        require_free(self.path("run.json"), force=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write files of the run within: raise if its folder is gone, before or after."""
        self.require_there()
        try:
            yield
        except OSError as error:  # of a full or failing disk
            self.require_there()
            raise InputError(f"{self.folder}: can't be written ({error.strerror or error}): see to its disk") from error
        finally:
            self.require_there()

    def log(self, **metrics: Any) -> None:
        """Append a line to the metrics."""
        with self.writing(), self.path("metrics.jsonl").open("a") as file:
            file.write(self._line(metrics))

    def _line(self, metrics: dict[str, Any]) -> str:
        return json.dumps(sealed(metrics, self.place("metrics"))) + "\n"

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics so far, without lines that are damaged, such as one left half-written by a killed job."""
        if not self.path("metrics.jsonl").exists():
            return []
        with damaged(self.path("metrics.jsonl")):
            found, lines = [], self.path("metrics.jsonl").read_text(errors="replace").split("\n")[:-1]
        for line in lines:
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
                if isinstance(value, dict):
                    found.append(unsealed(value, self.place("metrics")))
        if len(found) < len(lines):
            _warn(f"{self.path('metrics.jsonl')}: {len(lines) - len(found):,} damaged lines are left out")
        return found

    def drop_metrics_after(self, step: int) -> None:
        """Drop the metrics of steps that will be taken again, and those of no step."""
        steps = ((line.get("step"), line) for line in self.metrics())
        kept = [line for at, line in steps if isinstance(at, int) and at <= step]
        with self.writing(), replacing(self.path("metrics.jsonl"), force=True) as fresh:
            fresh.write_text("".join(map(self._line, kept)))

    def has(self, name: str) -> bool:
        """Return whether a stage's JSON or tensors exist."""
        return any(self.path(f"{name}.{ending}").exists() for ending in ("json", "safetensors"))

    def write_json(self, name: str, value: Any) -> None:
        with self.writing():
            stored = value if isinstance(value, dict) else {LIST: value}
            write_json(self.path(f"{name}.json"), sealed(stored, self.place(name)))

    def read_json(self, name: str, kind: type[T] = dict, advice: str = REMOVE) -> T:
        """Return a file's value, of this kind; `advice` says what to do if it is damaged."""
        path = self.path(f"{name}.json")
        with damaged(path, advice):
            value = json.loads(path.read_text())
            if isinstance(value, dict):
                value = unsealed(value, self.place(name))
                value = value if kind is dict else value.get(LIST)
            if not isinstance(value, kind):
                raise TypeError(f"holds no {'object' if kind is dict else kind.__name__}")
        return value  # pyright: ignore[reportReturnType]

    def write_tensors(self, name: str, tensors: dict[str, np.ndarray], **facts: str) -> None:
        with self.writing():
            save_tensors(tensors, self.path(f"{name}.safetensors"), facts, belongs_to=self.place(name))

    def read_tensors(self, name: str) -> dict[str, np.ndarray]:
        return self.read(name)[0]

    def read(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Return the tensors saved as `name`, and the facts about them."""
        return read_tensors(self.path(f"{name}.safetensors"), self.place(name))

    def write_tree(self, name: str, tree: Any, **facts: str) -> None:
        """Save the arrays of a pytree (a model, a training state), each named by its path in the tree."""
        self.write_tensors(name, tensors_of(tree), **facts)

    def read_tree(self, name: str, like: Any) -> Any:
        """Return the pytree saved as `name`; `like` has its structure and shapes."""
        return tree_from(self.read_tensors(name), like, str(self.path(f"{name}.safetensors")))


def _id(kind: str, job: dict[str, Any]) -> str:
    """Return what the files of a run are recognised by: the same job has the same."""
    return checksum(kind, json.dumps(job, sort_keys=True))


def _tell_versions(facts: dict[str, Any], folder: Path) -> None:
    """Warn if a run is continued by other versions than it was started with."""
    before, now = facts.get("versions"), versions()
    if not isinstance(before, dict):
        return
    other = [f"{name} {before.get(name)}, now {now.get(name)}" for name in now if before.get(name) != now.get(name)]
    if other:
        _warn(f"{folder}: was started with {'; '.join(other)}: results may differ from those of either alone")


def _warn(message: str) -> None:
    from trajstitch.progress import logger  # shows progress bars, which a deployed policy doesn't have

    logger.warning(message)


def _is_new(folder: Path) -> bool:
    """Return whether a folder holds nothing but what a killed or waiting job left there."""
    return not folder.exists() or all(path.name.startswith(PREFIX) for path in folder.iterdir())


def _require_resume(folder: Path, resume: bool, force: bool | None) -> None:
    if not resume:
        removable = force is not None and (folder / "run.json").is_file()
        again = " start it again with `force=True`," if removable else ""
        raise InputError(f"{folder} exists already: continue it with `resume=True`,{again} or choose another `run`")


def _require_kind(facts: dict[str, Any], folder: Path, kind: str) -> None:
    if facts.get("kind") != kind:
        inside = [str(path.parent) for path in sorted(folder.glob("*/run.json")) if _is_kind(path, kind)]
        hint = f": name one in it, such as {inside[0]}" if inside else ""
        raise InputError(f"{folder}: is a {facts.get('kind')!r} run, but a {kind!r} run is needed{hint}")


def _is_kind(path: Path, kind: str) -> bool:
    """Return whether a run.json is that of a run of this kind."""
    with suppress(OSError, ValueError, RecursionError):
        stored = json.loads(path.read_text())
        return isinstance(stored, dict) and stored.get("kind") == kind
    return False


def _require_outside(folder: Path, source: Any) -> None:
    """Raise if a job's data lies in the folder whose run is started again: data is never removed."""
    place = Path(source.partition(":")[2]) if isinstance(source, str) else None
    if place is not None and place.is_file() and place.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{place}: lies in {folder}, whose run would be removed: choose another `run`")


def _remove_made(folder: Path, patterns: Collection[str]) -> None:
    """Remove what a run has made in its folder, and no other file. run.json is left to be replaced.

    So the folder is that of a run at any moment, and a job that is killed in between can be started again.
    """
    try:
        for path in [path for pattern in ("metrics.jsonl", *patterns) for path in folder.glob(pattern)]:
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
            with suppress(OSError):  # it holds other files, or is the run's folder
                path.parent.rmdir()
    except OSError as error:
        raise InputError(f"{folder}: can't be emptied ({error.strerror}): choose another `run`") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    with replacing(path, force=True) as fresh:
        fresh.write_text(json.dumps(value, indent=1) + "\n")


def slug(text: str) -> str:
    """Return a text as the name of a file or folder."""
    return re.sub(r"[^\w.]+", "-", text).strip("-")


@contextmanager
def damaged(path: Path, advice: str = REMOVE) -> Iterator[None]:
    """Raise an InputError that names the file, and `advice`, if what is read within is not as it was written."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: can't be read ({error.strerror or error}): {advice}") from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError, OverflowError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: is damaged or belongs to another job ({reason}): {advice}") from error


def _difference(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> str | None:
    """Return the first setting that differs, as "NAME = BEFORE, not NOW", with a dotted path for nested ones."""
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if (found := _difference(old, new, f"{prefix}{name}.")) is not None:
                return found
        elif old != new:
            return f"{prefix}{name} = {_short(old)}, not {_short(new)}"
    return None


def _short(value: Any) -> str:
    return f"{value}" if len(f"{value}") < 60 else f"{f'{value}'[:50]} ..."


def _require_format(facts: dict[str, Any], folder: Path) -> None:
    found = facts.get("format", 1)
    if found == RUN_FORMAT:
        return
    older = isinstance(found, int) and found < RUN_FORMAT
    advice = "use that version, or start a new run" if older else "update trajstitch"
    raise InputError(
        f"{folder}: was made by {'an older' if older else 'a newer'} version of trajstitch (run format {found}, this "
        f"version reads {RUN_FORMAT}): {advice}"
    )
