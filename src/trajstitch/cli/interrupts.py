"""Ctrl-C ends the command within two seconds, wherever it is.

Python raises KeyboardInterrupt as soon as it can, and the job unwinds: it keeps what it has finished and says how to go
on. But Python can't while a compiled program runs. So a second thread, which the system tells of each signal, ends the
process where it has not ended by itself after a moment. Nothing is half-made then either: every file is written beside
its place and renamed, and the temporary folders are removed first.
"""

import os
import select
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from trajstitch.errors import as_flags
from trajstitch.storage import stopping

GRACE = 1.0
"""Seconds that a job may take to end by itself; a second Ctrl-C ends it at once."""
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""The exit code after each signal, as shells have it."""
NO_LEAKS = "ignore:resource_tracker:UserWarning"
"""Python's own process removes the semaphores of a process that ends at once, and would warn each time that it does."""
SHOW_CURSOR = "\x1b[?25h"
"""What a progress bar has hidden."""


def watch() -> None:
    """Let Ctrl-C and SIGTERM end this process; to be called once, by its main thread."""
    usual = sys.unraisablehook  # where Python can't raise, in a callback of a library, it prints a traceback
    sys.unraisablehook = lambda lost: None if lost.exc_type in (KeyboardInterrupt, SystemExit) else usual(lost)
    sys.warnoptions.append(NO_LEAKS)  # which the processes started from here on are given
    listening, telling = os.pipe()
    os.set_blocking(telling, False)
    signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(listening,), daemon=True).start()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as under nohup
        signal.signal(signal.SIGINT, _raise)
    signal.signal(signal.SIGTERM, _raise)


received: list[int] = []
"""The signals that were to end this process, for what a library makes of the exceptions that they raise."""


def _raise(number: int, frame: FrameType | None) -> None:
    stopping.asked.set()
    received.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(CODES[signal.Signals(number)])


def _wait(listening: int) -> None:
    """End the process a moment after the first signal, or with the second."""
    while (number := os.read(listening, 1)[0]) not in CODES:
        pass
    select.select([listening], [], [], GRACE)
    advice = "".join(f"{as_flags(line)}\n" for line in stopping.abandon())
    shown = f"{SHOW_CURSOR}\n" if sys.__stderr__ is not None and sys.__stderr__.isatty() else ""
    with suppress(OSError):  # not by way of sys.stderr, which the main thread may hold
        os.write(2, f"{shown}{advice}interrupted\n".encode(errors="replace"))
    _end(CODES[signal.Signals(number)])


def finish(code: int) -> NoReturn:
    """End the process with this exit code, when all is done or the job has unwound."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if code in CODES.values():
        stopping.abandon()
        _end(code)  # what still runs in other threads is not waited for
    if signal.getsignal(signal.SIGINT) is _raise:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
    if signal.getsignal(signal.SIGTERM) is _raise:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(code))
    sys.exit(code)


def _end(code: int) -> NoReturn:
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.terminate()
    os._exit(code)
