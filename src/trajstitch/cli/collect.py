"""`trajstitch collect SET`."""

import time
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from trajstitch import formats
from trajstitch.benchmark import sets
from trajstitch.benchmark.collect import Collect, collect
from trajstitch.cli.output import print_json, stdout
from trajstitch.data import environments
from trajstitch.errors import InputError


@dataclass(frozen=True)
class Command(Collect):
    """Make a built-in set by rolling out the shipped policies: the same seed gives the same bits.

    Example: trajstitch collect hopper/medium-replay --transitions 50000 --to npz:hopper.npz
    """

    set: Annotated[Positional[str], arg(metavar="SET")]
    """The built-in set, such as hopper/medium-replay; `trajstitch sets` lists them."""
    to: str | None = None
    """Where to save it, as a URI; in the local Minari store, under the set's own name, if not given."""
    force: bool = False
    """Overwrite what is there."""
    json: bool = False
    """Print JSON instead of a line of text."""

    def execute(self) -> None:
        if self.ladder is not None and self.to is None:
            raise InputError("`to` must be given with `ladder`: the set's own name is for the shipped policies")
        target = self.to or f"minari:{sets.built_in(self.set).minari_id}"
        formats.require_free(target, force=self.force)
        start = time.monotonic()
        data = collect(self)
        seconds = time.monotonic() - start
        formats.save(data, target, force=self.force)
        score = float(environments.normalised(data.returns.mean(), data.metadata))
        if self.json:
            print_json({"saved": target, "seconds": seconds, "score": score, **data.summary()})
            return
        stdout().print(
            f"{target}: {data.steps:,} transitions in {len(data):,} episodes, mean return {data.returns.mean():,.0f} "
            f"(score {score:.1f}), collected at {data.steps / seconds:,.0f} steps/s",
            soft_wrap=True,
        )
