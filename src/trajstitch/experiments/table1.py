"""Table 1: every method on every set, beside the paper's own numbers."""

from trajstitch.benchmark import sets
from trajstitch.experiments.methods import Method, unchanged
from trajstitch.policies.bc import WeightedBC
from trajstitch.policies.iql import IQL
from trajstitch.policies.td3_bc import TD3BC

SETS = sets.NAMES[:12]

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
