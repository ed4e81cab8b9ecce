"""`trajstitch train POLICY SRC`."""

from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from tyro.conf import OmitArgPrefixes, OmitSubcommandPrefixes, subcommand

from trajstitch.cli.columns import ColumnFlags
from trajstitch.cli.output import print_json, stdout
from trajstitch.policies.bc import BC, WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.policy import checkpoints
from trajstitch.policies.td3_bc import TD3BC
from trajstitch.policies.train import Train, train_run

Policy = TypeVar("Policy", BC, WeightedBC, TD3BC, IQL)


DESCRIPTION = """Train a policy on a data set, all seeds at once; `trajstitch evaluate RUN` scores it.

Example: trajstitch train bc hopper/medium-replay --seeds 5 --top 0.1

`trajstitch train bc --help` shows what can be set."""


@dataclass(frozen=True, kw_only=True)
class Job(Train, ColumnFlags, Generic[Policy]):
    """Train one kind of policy."""

    policy: OmitArgPrefixes[Policy]
    """The method's own settings."""
    json: bool = False
    """Print JSON instead of text."""

    def execute(self) -> None:
        run = train_run(self, self.policy, self.mapping(self.source))
        found = checkpoints(run.folder)
        last = run.metrics()[-1]
        if self.json:
            print_json({"run": str(run.folder), "checkpoints": [str(path) for path in found], "metrics": last})
            return
        shown = ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in last.items() if name != "step")
        stdout().print(
            f"{run.folder}: {self.seeds} policies after {last['step']:,} steps ({shown})\n"
            f"score them with: trajstitch evaluate {run.folder}",
            soft_wrap=True,
        )


Command = OmitSubcommandPrefixes[
    Annotated[Job[BC], subcommand("bc", description="behavioural cloning, as in the paper")]
    | Annotated[Job[WeightedBC], subcommand("weighted-bc", description="BC with each sample weighted by V(s)")]
    | Annotated[Job[TD3BC], subcommand("td3-bc", description="TD3+BC (Fujimoto & Gu 2021)")]
    | Annotated[Job[IQL], subcommand("iql", description="implicit Q-learning (Kostrikov et al. 2021)")]
]
