"""How real are the jumps? The simulator's answer, beside what the models said of them."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr

from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.simulator import replay
from trajstitch.stitching.graph import Edges, StitchGraph

CONSISTENCIES = (0.05, 0.1, 0.2, 0.3, 0.5, np.inf)
MARGINS = (-np.inf, -64.0, -16.0, -4.0, 0.0, np.inf)


@dataclass(frozen=True)
class SimulatorCheck:
    """Steps (s, a, s', r) against what the simulator does in s with a; only states it could be set to exactly."""

    error: Float[np.ndarray, " steps"]
    """Distance of its next state from s', in standardised states."""
    length: Float[np.ndarray, " steps"]
    """The step's own length."""
    reward_error: Float[np.ndarray, " steps"]
    """The claimed reward less the true one."""
    index: np.ndarray
    """Which of the steps asked about these are."""

    @property
    def ratio(self) -> Float[np.ndarray, " steps"]:
        """Error over step length: 0 is real, 1 is as wrong as staying put."""
        return self.error / np.maximum(self.length, 1e-9)

    def summary(self) -> dict[str, Any]:
        if not len(self.error):
            return {"steps": 0}
        low, middle, high = (float(value) for value in np.quantile(self.ratio, (0.25, 0.5, 0.75)))
        return {
            "steps": len(self.error),
            "median_ratio": middle,
            "quartiles": [low, high],
            "median_reward_error": float(np.median(np.abs(self.reward_error))),
            "mean_reward_error": float(self.reward_error.mean()),
        }


def ask(
    data: Trajectories,
    observations: np.ndarray,
    actions: np.ndarray,
    next_observations: np.ndarray,
    rewards: np.ndarray,
) -> SimulatorCheck:
    """What the simulator of the data's environment says of steps; lengths are in units of the data's spread."""
    outcome = replay(data.metadata, observations, actions)
    spread = data.observations.std(0, dtype=np.float64)
    spread = np.where(spread > 1e-9, spread, 1.0)
    known = np.flatnonzero(outcome.known)
    return SimulatorCheck(
        error=np.linalg.norm((outcome.next_observations - next_observations)[known] / spread, axis=1),
        length=np.linalg.norm((next_observations - observations)[known] / spread, axis=1),
        reward_error=(rewards - outcome.rewards)[known],
        index=known,
    )


def check_jumps(data: Trajectories, stitched: Trajectories, most: int = 20_000) -> SimulatorCheck:
    """The truth about the steps of a stitched data set that are jumps."""
    assert stitched.provenance is not None
    jumps = _some(np.flatnonzero(stitched.provenance.stitched), most)
    rows = stitched.state_rows[jumps]
    return ask(
        data,
        stitched.observations[rows],
        stitched.actions[jumps],
        stitched.observations[rows + 1],
        stitched.rewards[jumps],
    )


def check_edges(data: Trajectories, graph: StitchGraph, most: int = 20_000) -> tuple[SimulatorCheck, Edges]:
    """The truth about the graph's edges, taken or not, and the edges asked about."""
    edges = graph.edges.take(_some(np.arange(len(graph.edges)), most))
    states = data.observations
    truth = ask(data, states[edges.source], edges.action, states[edges.target], edges.reward)
    return truth, edges.take(truth.index)


def report(data: Trajectories, stitched: Trajectories, graph: StitchGraph, most: int = 20_000) -> dict[str, Any]:
    """Logged steps, jumps made, and edges by consistency and by likelihood margin, with the rank correlations."""
    steps = _some(np.arange(data.steps), min(most, 1_000))
    rows = data.state_rows[steps]
    logged = ask(data, data.observations[rows], data.actions[steps], data.observations[rows + 1], data.rewards[steps])
    made = check_jumps(data, stitched, most)
    facts = {"logged": logged.summary(), "jumps": made.summary()}
    if not len(graph.edges) or not graph.edges.action.shape[1]:
        return facts
    truth, edges = check_edges(data, graph, most)
    margin = edges.low - graph.logged[edges.source]
    return facts | {
        "edges": truth.summary(),
        "by_consistency": _by(edges.consistency, truth.ratio, (0.0, *CONSISTENCIES)),
        "by_margin": _by(margin, truth.ratio, MARGINS),
        "rank_correlation": {
            "consistency": _correlation(edges.consistency, truth.ratio),
            "likelihood": _correlation(-margin, truth.ratio),
        },
        "tenths": {
            "consistency": _tenths(edges.consistency, truth.ratio),
            "likelihood": _tenths(-margin, truth.ratio),
        },
    }


def _some(index: np.ndarray, most: int) -> np.ndarray:
    return index if len(index) <= most else np.sort(np.random.default_rng(0).permutation(index)[:most])


def _by(scale: np.ndarray, ratio: np.ndarray, bounds: tuple[float, ...]) -> list[dict[str, Any]]:
    rows = []
    for low, high in pairwise(bounds):
        inside = ratio[(scale > low) & (scale <= high)]
        if len(inside):
            ends = [None if np.isinf(bound) else bound for bound in (low, high)]
            rows.append(
                {"from": ends[0], "to": ends[1], "edges": len(inside), "median_ratio": float(np.median(inside))}
            )
    return rows


def _tenths(suspicion: np.ndarray, ratio: np.ndarray) -> list[list[float]]:
    """Quartiles of the true error in each tenth of the edges, from the least to the most suspicious."""
    parts = np.array_split(ratio[np.argsort(suspicion, kind="stable")], 10)
    return [np.quantile(part, (0.25, 0.5, 0.75)).tolist() for part in parts if len(part)]


def _correlation(scale: np.ndarray, ratio: np.ndarray) -> float | None:
    if len(scale) < 3 or np.ptp(scale) == 0 or np.ptp(ratio) == 0:
        return None
    return float(spearmanr(scale, ratio).statistic)  # pyright: ignore[reportAttributeAccessIssue]
