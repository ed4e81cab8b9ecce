"""`trajstitch expert TASK`."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from trajstitch.benchmark.expert import Expert, expert
from trajstitch.benchmark.ladder import load_ladder
from trajstitch.cli.output import print_json, stdout
from trajstitch.storage.stopping import resumable


@dataclass(frozen=True)
class Command(Expert):
    """Train a ladder of policies with TD3 or SAC: checkpoints along the best seed's training, and its expert.

    Example: trajstitch expert hopper --steps 1000000 --seeds 5
    """

    task: Annotated[Positional[str], arg(metavar="TASK")]
    """hopper, walker2d or halfcheetah; or the Gymnasium id of a task with continuous actions."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        with resumable("the same command with --resume continues"):
            path = expert(self)
        ladder = load_ladder(path)
        rungs = [
            {"steps": rung.steps, "mean_return": rung.mean_return, "std_return": rung.std_return}
            for rung in ladder.checkpoints
        ]
        if self.json:
            print_json({"ladder": str(path), "seed": ladder.seed, "checkpoints": rungs})
            return
        out = stdout()
        for rung in rungs:
            out.print(f"{rung['steps']:>10,} steps  return {rung['mean_return']:>8,.0f} ± {rung['std_return']:,.0f}")
        out.print(f"{path}: {len(rungs)} policies of seed {ladder.seed}", soft_wrap=True)
