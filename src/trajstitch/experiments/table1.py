"""Table 1: every method on every set, beside the paper's own numbers."""

from pathlib import Path

from trajstitch.benchmark import sets
from trajstitch.experiments.comparison import Table
from trajstitch.experiments.experiment import Experiment
from trajstitch.experiments.figures import Look, draw_scores
from trajstitch.experiments.methods import Method, unchanged
from trajstitch.policies.bc import WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC

METHODS = {
    "bc": Method("BC"),
    "top-bc": Method("10 % BC", top=0.1),
    "weighted-bc": Method("weighted BC", WeightedBC()),
    "paper-ts-bc": Method("paper's TS + BC", stitched=unchanged, preset="paper"),
    "ts-bc": Method("TS + BC", stitched=unchanged),
    "ts-top-bc": Method("TS + best tenth", top=0.1, stitched=unchanged),
    "td3-bc": Method("TD3+BC", TD3BC()),
    "ts-td3-bc": Method("TS + TD3+BC", TD3BC(), stitched=unchanged, gives="union"),
    "iql": Method("IQL", IQL()),
    "ts-iql": Method("TS + IQL", IQL(), stitched=unchanged, gives="union"),
}
PAIRS = (
    ("ts-bc", "bc"),
    ("ts-top-bc", "top-bc"),
    ("ts-td3-bc", "td3-bc"),
    ("ts-iql", "iql"),
    ("paper-ts-bc", "bc"),
    ("ts-bc", "paper-ts-bc"),
    ("ts-bc", "weighted-bc"),
    ("ts-bc", "top-bc"),
    ("ts-bc", "td3-bc"),
    ("ts-bc", "iql"),
)
LOOKS = {
    "bc": Look("BC", "#8b949e", "o"),
    "top-bc": Look("10 % BC", "#8b949e", "D", filled=False),
    "paper-ts-bc": Look("paper's TS + BC", "#b565a7", "o"),
    "ts-bc": Look("TS + BC", "#1a9e6e", "o"),
    "ts-top-bc": Look("TS + best tenth", "#1a9e6e", "D", filled=False),
    "td3-bc": Look("TD3+BC", "#d97706", "s", filled=False),
    "ts-td3-bc": Look("TS + TD3+BC", "#d97706", "s"),
    "iql": Look("IQL", "#5b7fe0", "^", filled=False),
    "ts-iql": Look("TS + IQL", "#5b7fe0", "^"),
}
"""The methods of the figure."""
_COLUMNS = ("bc", "paper-ts-bc", "td3-bc", "iql")
_NUMBERS = {
    "hopper/medium": ("55.3", "64.3 ± 4.2", "59.3", "66.3"),
    "halfcheetah/medium": ("42.9", "43.2 ± 0.3", "48.3", "47.4"),
    "walker2d/medium": ("75.6", "78.8 ± 1.2", "83.7", "78.3"),
    "hopper/medium-expert": ("62.3", "94.8 ± 11.7", "98.0", "91.5"),
    "halfcheetah/medium-expert": ("60.7", "86.9 ± 2.5", "90.7", "86.7"),
    "walker2d/medium-expert": ("108.2", "108.8 ± 0.5", "110.1", "109.6"),
    "hopper/medium-replay": ("29.6", "50.2 ± 17.2", "60.9", "94.7"),
    "halfcheetah/medium-replay": ("38.5", "39.8 ± 0.6", "44.6", "44.2"),
    "walker2d/medium-replay": ("34.7", "61.5 ± 5.6", "81.8", "73.9"),
    "hopper/expert": ("111.0", "111.8 ± 0.5", "107.8"),
    "halfcheetah/expert": ("92.9", "93.2 ± 0.6", "96.7"),
    "walker2d/expert": ("109.0", "108.9 ± 0.2", "110.2"),
}
PAPER = {(name, method): text for name, row in _NUMBERS.items() for method, text in zip(_COLUMNS, row, strict=False)}
PAPER |= {("hopper/medium", "weighted-bc"): "59.21 ± 3.4", ("hopper/medium-expert", "weighted-bc"): "66.02 ± 6.9"}
"""The paper's Table 1 and its ablation, on D4RL's v2 sets; TD3+BC and IQL are quoted there from their publications."""


def draw(table: Table, experiment: Experiment, path: Path) -> None:
    draw_scores(table, LOOKS, path)


EXPERIMENT = Experiment(
    name="table1",
    title="Table 1: stitched data against logged data, for every learner",
    about=(
        "10 % BC: the tenth of the trajectories with the highest returns. TS: the data stitched first; clones learn "
        "from the stitched data, TD3+BC and IQL from the union of the logged and the changed trajectories. Best tenth: "
        "of stitched data, the best for their starts. Paper's TS: with the preset `paper`, and greedy passes."
    ),
    methods=METHODS,
    sets=sets.LIKE_D4RL,
    pairs=PAIRS,
    draw=draw,
    paper=PAPER,
)
