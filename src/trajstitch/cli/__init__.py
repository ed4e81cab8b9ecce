"""The command line: `trajstitch VERB`. Flags are the fields of a verb's `Command`; results go to stdout.

A verb is one file in this folder, with a `Command` class whose fields are the flags and whose `execute` does the job,
and one line in VERBS. If the flags' defaults depend on the arguments, the file's `defaults(arguments)` returns them;
if the flags themselves depend on the first argument, its `choose(argument)` returns the command and its description.
Nothing heavy is imported before the verb is known, so that `--help` is instant.
"""

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence

from trajstitch.cli import interrupts
from trajstitch.errors import InputError, JobError, as_flags, clean, did_you_mean, one_line, shortened
from trajstitch.storage import stopping

OUTSIDE = {
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
}
"""Errors of the system that are no mistake of ours: one line says all of them."""

VERBS = {
    "learn": "find the best policy that a log supports, in one go",
    "sets": "list the built-in benchmark sets and what is in the local Minari store",
    "collect": "make a built-in set by rolling out the shipped policies",
    "inspect": "show what is in a data set, and check it",
    "convert": "copy a data set from one format to another",
    "stitch": "make a better data set from the trajectories of one",
    "simulate": "check a run's jumps in the simulator",
    "train": "train a policy on a data set, several seeds at once",
    "evaluate": "roll out a run's policies and score them",
    "export": "write a policy as ONNX or safetensors, to run without trajstitch",
    "reproduce": "measure one of the paper's experiments and write its page",
    "report": "write a page that shows and compares runs",
    "expert": "train a ladder of policies (TD3 or SAC) for the built-in sets",
}

HELP = """\
usage: trajstitch VERB [flags]      `trajstitch VERB --help` explains a verb

Better offline-RL data from the data you have.

verbs:
{verbs}

A data set is named by a URI:
  minari:mujoco/hopper/medium-v0    in the local Minari store, or downloaded into it
  d4rl:hopper-medium-v2.hdf5        a D4RL file
  npz:log.npz                       NumPy arrays (observations, actions, rewards, ...)
  table:log.parquet                 a CSV or Parquet file, one row a step
  hopper/medium-replay              a built-in set, collected on first use

try:
  trajstitch learn hopper/medium-replay --run hopper --budget 30m
  trajstitch collect hopper/medium-replay --transitions 50000 --to npz:hopper.npz
  trajstitch inspect npz:hopper.npz
  trajstitch stitch npz:hopper.npz minari:my/hopper-stitched-v0 --preset quick
  trajstitch train bc minari:my/hopper-stitched-v0 --run clone && trajstitch evaluate clone
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 the job failed, 2 bad input or usage, 130 interrupted."""
    try:
        interrupts.watch()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without our signs shows the rest
        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # before the command has begun
        code = _interrupted()
    except SystemExit as error:  # tyro's, of --help and wrong usage; or of SIGTERM
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if stopping.asked.is_set():
            _interrupted()
        if interrupts.received:  # Ray makes another exit of it
            code = interrupts.CODES[signal.Signals(interrupts.received[0])]
    interrupts.finish(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        return _dispatch(arguments)
    except InputError as error:
        if stopping.asked.is_set():  # a library made another error of it
            return _interrupted()
        print(f"error: {as_flags(str(error))}", file=sys.stderr)
        return 2
    except JobError as error:
        if stopping.asked.is_set():
            return _interrupted()
        print(f"error: {as_flags(shortened(one_line(str(error))))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone
        return 1
    except OSError as error:
        if stopping.asked.is_set():
            return _interrupted()
        if error.errno not in OUTSIDE:
            return _failed(error)
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes | os.PathLike) else "a file"
        print(f"error: {shortened(one_line(f'{where}: {error.strerror}'))}", file=sys.stderr)
        return 2
    except Exception as error:
        if stopping.asked.is_set():
            return _interrupted()
        return _failed(error)


def _failed(error: Exception) -> int:
    print(clean(traceback.format_exc()), end="", file=sys.stderr)
    print(f"error: the job failed ({type(error).__name__}: {one_line(str(error))})", file=sys.stderr)
    return 1


def _interrupted() -> int:
    print("interrupted", file=sys.stderr)
    return 130


def _dispatch(arguments: Sequence[str]) -> int:
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("--help", ())
    if verb in ("--help", "-h", "help"):
        width = max(map(len, VERBS))
        print(HELP.format(verbs="\n".join(f"  {name:{width}}  {text}" for name, text in VERBS.items())), end="")
        return 0 if arguments else 2
    if verb == "--version":
        from importlib.metadata import version

        print(version("trajstitch"))
        return 0
    if verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}{did_you_mean(verb, VERBS)}: `trajstitch --help` lists them")
    if {"-h", "--help"} & set(rest):
        from trajstitch.cli.short_help import UnreadableError, short_help

        words = [word for word in rest if word not in ("-h", "--help")]
        with contextlib.suppress(UnreadableError):  # the full help needs no source
            print(short_help(verb, words), end="")
            return 0
    rest = ["--help" if word == "--help-all" else word for word in rest]
    import tyro

    from trajstitch.cli.output import show_log
    from trajstitch.learning.bounds import check_bounds

    show_log()
    module = importlib.import_module(f"trajstitch.cli.{verb}")
    defaults = {"default": module.defaults(rest)} if hasattr(module, "defaults") else {}
    command, description, words = module.Command, getattr(module, "DESCRIPTION", None), [verb]
    if hasattr(module, "choose") and rest and not rest[0].startswith("-"):
        command, description = module.choose(rest[0])
        words, rest = [verb, rest[0]], rest[1:]
    asked = tyro.cli(
        command,
        args=list(rest),
        prog=" ".join(["trajstitch", *words]),
        description=description,
        config=(tyro.conf.FlagCreatePairsOff,),
        **defaults,
    )
    check_bounds(asked, unnamed=("config", "policy"))
    return asked.execute() or 0
