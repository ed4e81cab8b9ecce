"""The simulator check: how far jumps miss their targets in the simulator, beside the scores of the jump tests."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr

from trajstitch.data.normaliser import Normaliser
from trajstitch.data.trajectories import Trajectories
from trajstitch.evaluation.simulator import replay
from trajstitch.learning.fit_report import tenths
from trajstitch.stitching.graph import Edges, StitchGraph
from trajstitch.stitching.jump_tests import likelihood_margin

CONSISTENCIES = (0.05, 0.1, 0.2, 0.3, 0.5, np.inf)
MARGINS = (-np.inf, -64.0, -16.0, -4.0, 0.0, np.inf)


@dataclass(frozen=True)
class SimulatorCheck:
    """Steps (s, a, s', r) compared with what the simulator does in s with a; only states it can be set to exactly."""

    error: Float[np.ndarray, " steps"]
    """Distance of the simulator's next state from s', in standardised states."""
    length: Float[np.ndarray, " steps"]
    """The step's own length."""
    reward_error: Float[np.ndarray, " steps"]
    """The predicted reward less the true one."""
    index: np.ndarray
    """Which of the given steps these are."""

    @property
    def ratio(self) -> Float[np.ndarray, " steps"]:
        """Error over step length: 0 is exact, 1 is as wrong as not moving."""
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


def check_steps(
    data: Trajectories,
    observations: np.ndarray,
    actions: np.ndarray,
    next_observations: np.ndarray,
    rewards: np.ndarray,
) -> SimulatorCheck:
    """Compare steps with the simulator of the data's environment; distances are between standardised states."""
    outcome = replay(data.metadata, observations, actions)
    std = Normaliser.of(data.observations).std
    known = np.flatnonzero(outcome.known)
    return SimulatorCheck(
        error=np.linalg.norm((outcome.next_observations - next_observations)[known] / std, axis=1),
        length=np.linalg.norm((next_observations - observations)[known] / std, axis=1),
        reward_error=(rewards - outcome.rewards)[known],
        index=known,
    )


def check_jumps(data: Trajectories, stitched: Trajectories, most: int = 20_000) -> SimulatorCheck:
    """Check the steps of a stitched data set that are jumps; `index` tells which steps these are."""
    assert stitched.provenance is not None
    jumps = _some(np.flatnonzero(stitched.provenance.stitched & stitched.next_known), most)
    rows = stitched.state_rows[jumps]
    check = check_steps(
        data,
        stitched.observations[rows],
        stitched.actions[jumps],
        stitched.observations[rows + 1],
        stitched.rewards[jumps],
    )
    return replace(check, index=jumps[check.index])


def check_edges(data: Trajectories, graph: StitchGraph, most: int = 20_000) -> tuple[SimulatorCheck, Edges]:
    """Check the graph's edges, made or not; return the check and the edges it covers."""
    edges = graph.edges.take(_some(np.arange(len(graph.edges)), most))
    assert edges.action is not None
    assert edges.reward is not None
    states = data.filled().observations
    check = check_steps(data, states[edges.source], edges.action, states[edges.target], edges.reward)
    return check, edges.take(check.index)


def report(data: Trajectories, jumps: SimulatorCheck, graph: StitchGraph, most: int = 20_000) -> dict[str, Any]:
    """Return how far logged steps, jumps and edges miss, and how well each jump test's score predicts that."""
    steps = _some(np.flatnonzero(data.next_known), min(most, 1_000))
    rows = data.state_rows[steps]
    states = data.observations
    logged = check_steps(data, states[rows], data.actions[steps], states[rows + 1], data.rewards[steps])
    facts = {"logged": logged.summary(), "jumps": jumps.summary()}
    if not len(graph.edges) or graph.edges.action is None:
        return facts
    check, edges = check_edges(data, graph, most)
    found: dict[str, tuple[np.ndarray, tuple[float, ...]]] = {}
    if "consistency" in edges.scores:
        found["consistency"] = edges.scores["consistency"], (0.0, *CONSISTENCIES)
    if "log_likelihood" in edges.scores:
        replaced = {name: values[edges.source] for name, values in graph.logged.items()}
        found["margin"] = likelihood_margin(edges.scores, replaced, len(edges)), MARGINS
    # A small consistency and a large margin are good signs.
    suspicion = {
        "likelihood" if name == "margin" else name: -values if name == "margin" else values
        for name, (values, _) in found.items()
    }
    return facts | {
        "edges": check.summary(),
        **{f"by_{name}": _by(values, check.ratio, bounds) for name, (values, bounds) in found.items()},
        "rank_correlation": {name: _correlation(values, check.ratio) for name, values in suspicion.items()},
        "tenths": {name: tenths(values, check.ratio) for name, values in suspicion.items()},
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


def _correlation(scale: np.ndarray, ratio: np.ndarray) -> float | None:
    if len(scale) < 3 or np.ptp(scale) == 0 or np.ptp(ratio) == 0:
        return None
    return float(spearmanr(scale, ratio).statistic)  # pyright: ignore[reportAttributeAccessIssue]
