"""`trajstitch report RUN...`."""

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from trajstitch.cli.output import print_json, stdout
from trajstitch.report.page import default_target, write_page


@dataclass(frozen=True, kw_only=True)
class Command:
    """Write a page that shows what a run improved and whether to trust it; several runs are compared.

    One HTML file that needs no network: returns before and after, a map of the jumps, rebuilt trajectories step by
    step, the models, the policies' scores, and how everything was made.

    Example: trajstitch report runs/stitch-hopper-medium-replay-quick-seed-0 --open

    Compared: trajstitch report clone-logged clone-stitched -o clones.html
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...")]
    """Folders of `trajstitch learn`, `stitch` and `train`; scores are shown where `evaluate` has stored them."""
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="FILE")] = None
    """The file to write; RUN/report.html if not given, or report.html for several runs."""
    open: bool = False
    """Open the page in a browser."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        target = write_page(self.runs, self.output or default_target(self.runs))
        size = target.stat().st_size
        if self.json:
            print_json({"page": str(target), "bytes": size, "runs": [str(run) for run in self.runs]})
        else:
            stdout().print(f"{target} ({size / 1e6:.1f} MB): open it in any browser", soft_wrap=True)
        if self.open:
            webbrowser.open(target.resolve().as_uri())
