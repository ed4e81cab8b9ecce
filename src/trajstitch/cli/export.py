"""`trajstitch export RUN DST`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from trajstitch.cli.output import print_json, stdout
from trajstitch.learning.bounds import SEED, Bounds
from trajstitch.workflow.export import described, export


@dataclass(frozen=True, kw_only=True)
class Command:
    """Write a policy as one file that runs without trajstitch: ONNX, or safetensors for NumPy.

    The file holds everything from raw observations to actions within their bounds. Of a `learn` run it is the policy
    that was chosen; of a `train` run, that of the last checkpoint with the best score, or, if the run was not
    evaluated, whose actions are nearest to the data's. The lines of Python that run the file are printed.

    Example: trajstitch export runs/learn-log policy.onnx
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of `trajstitch learn` or `train`, or the file of a checkpoint."""
    target: Annotated[Positional[Path], arg(metavar="DST")]
    """File to write: NAME.onnx (needs `pip install 'trajstitch[onnx]'`) or NAME.safetensors."""
    seed: Annotated[int, SEED] | None = None
    """Of a training: the policy of this seed."""
    checkpoint: Annotated[int, Bounds(1)] | None = None
    """Of a training: the policy after this many gradient steps; the last checkpoint if not given."""
    force: bool = False
    """Overwrite the file if it exists."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        found = export(self.run, self.target, seed=self.seed, checkpoint=self.checkpoint, force=self.force)
        if self.json:
            policy = found.policy
            facts = {"seed": policy.seed, "steps": policy.steps, "config": policy.config}
            print_json({"file": str(found.path), "why": found.why, **facts, "code": found.code})
            return
        out = stdout()
        for line in described(found):
            out.print(line, soft_wrap=True)
        out.print(f"\n{found.code}", soft_wrap=True, end="")
