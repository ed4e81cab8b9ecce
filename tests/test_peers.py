"""The comparison with d3rlpy: our half runs for real, and its page says what the numbers say. d3rlpy isn't here."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trajstitch.errors import InputError

FOLDER = Path(__file__).parents[1] / "peers"


def load_page() -> Any:
    spec = importlib.util.spec_from_file_location("peers_page", FOLDER / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


page = load_page()


def row(library: str, algorithm: str, seed: int, score: float, **others: Any) -> dict[str, Any]:
    asked = {"library": library, "set": "hopper/medium-expert", "algorithm": algorithm, "seed": seed}
    size = {"transitions": 1000, "steps": 2000, "episodes": 10}
    return {
        **asked,
        **size,
        "score": score,
        "action_error": 0.1,
        "machine": "a machine",
        "versions": {"python": "3"},
        **others,
    }


def measured(theirs_of_iql: float = 41.0) -> list[dict[str, Any]]:
    rows = []
    for seed in range(3):
        for library, iql in (("trajstitch", 40.0), ("d3rlpy", theirs_of_iql)):
            rows += [row(library, "bc", seed, 30.0 + 2 * seed), row(library, "iql", seed, iql + seed)]
    return rows


SPEED = {
    "set": "hopper/medium-expert",
    "cores": 2,
    "load_before": 0.1,
    "rates": {"bc": {"ours": [900.0, 1000.0, 100.0], "1": [200.0] * 3, "2": [180.0] * 3}},
    "machine": "a machine",
    "versions": {"python": "3"},
}


def test_page_says_that_scores_agree_and_shows_them() -> None:
    text = page.page(measured(), SPEED, None)
    assert "**The final scores agree** after 2,000 steps: the 95 % intervals overlap in 2 of 2 comparisons." in text
    assert "| hopper/medium-expert | BC | 3 | 32.0 ± 2.0 | 32.0 ± 2.0 | 32.0 [30.0, 34.0] | 32.0 [30.0, 34.0] |" in text
    assert "--transitions 1000 --steps 2000 --episodes 10 --seeds 3" in text


def test_page_names_what_disagrees() -> None:
    text = page.page(measured(theirs_of_iql=60.0), None, None)
    assert "**The final scores do not all agree** after 2,000 steps: the 95 % intervals overlap in 1 of 2" in text
    assert "Apart are IQL on hopper/medium-expert: ours 41.0 [40.0, 42.0], d3rlpy 61.0 [60.0, 62.0]." in text


def test_intervals_that_overlap_are_not_taken_for_agreement_where_one_library_is_always_ahead() -> None:
    scores = {"trajstitch": (2.7, 2.7, 2.8, 3.0, 4.0), "d3rlpy": (3.1, 4.1, 6.6, 8.8, 14.2)}
    rows = [row(library, "bc", seed, score) for library in scores for seed, score in enumerate(scores[library])]
    text = page.page([*rows, row("trajstitch", "iql", 0, 40.0)], None, None)
    assert "**The final scores do not all agree** after 2,000 steps: the 95 % intervals overlap in 1 of 1" in text
    assert "still leaves out 0.5 for BC on hopper/medium-expert, 0.04 [" in text
    assert "Not compared yet: IQL on hopper/medium-expert." in text


def test_ours_from_another_machine_stand_beside_theirs() -> None:
    again = [{**row("trajstitch", "bc", seed, 36.0 + seed), "machine": "a GPU"} for seed in range(2)]
    text = page.page(measured(), None, None, again)
    assert "Ours once more, on a GPU (" in text
    assert "| hopper/medium-expert | BC | 2 | 36.5 ± 0.7 |" in text


def test_the_longest_training_is_judged_and_each_has_a_table() -> None:
    early = [{**one, "steps": 100} for one in measured(theirs_of_iql=60.0)]
    text = page.page([*measured(), *early], None, None)
    assert "**The final scores agree** after 2,000 steps" in text
    assert text.index("100 steps on 1,000 transitions") < text.index("2,000 steps on 1,000 transitions")


def test_speed_is_held_against_the_better_of_their_thread_counts() -> None:
    """By medians: 900 against 200 with one thread."""
    text = page.page(measured(), SPEED, None)
    assert "**Updates a second are at least 2× d3rlpy's for each** on 2 cores: BC 4.5×." in text
    assert "| BC | 900 (100–1,000) | 200 (200–200) | 1 | 4.5× |" in text
    slow = {**SPEED, "rates": {"bc": {"ours": [300.0], "1": [100.0], "2": [200.0]}}}
    assert "not at least 2× d3rlpy's for each** on 2 cores: BC 1.5×. Short of it: BC." in page.page(
        measured(), slow, None
    )


def test_each_comparison_has_its_own_number_of_seeds() -> None:
    text = page.page(
        [*measured(), *(row(library, "td3-bc", 7, 3.0) for library in ("trajstitch", "d3rlpy"))], None, None
    )
    assert "--episodes 10 --seeds 3\n" in text
    assert "--episodes 10 --seeds 8 --sets hopper/medium-expert --algorithms td3-bc\n" in text


def test_unfinished_measurements_are_called_so() -> None:
    rows = [one for one in measured() if (one["library"], one["seed"]) != ("d3rlpy", 2)]
    assert "| hopper/medium-expert | BC | 3 and 2 (unfinished) |" in page.page(rows, None, None)
    with pytest.raises(InputError, match="nothing has been measured with both"):
        page.page([one for one in rows if one["library"] == "d3rlpy"], None, None)


def test_scores_are_added_to_a_file_and_not_measured_again(tmp_path: Path) -> None:
    to = tmp_path / "scores.json"
    kept = row("d3rlpy", "bc", 0, 12.0)
    to.write_text(json.dumps([kept]))
    asked = ["--libraries", "trajstitch", "--sets", "hopper/medium-replay", "--algorithms", "bc", "--seeds", "2"]
    size = ["--transitions", "300", "--steps", "20", "--episodes", "2", "--data", str(tmp_path), "--to", str(to)]

    def scores() -> str:
        subprocess.run([sys.executable, FOLDER / "compare.py", "scores", *asked, *size], check=True, cwd=tmp_path)
        return to.read_text()

    found = scores()
    first, *others = json.loads(found)
    assert first == kept
    assert [(one["library"], one["seed"], len(one["returns"])) for one in others] == [
        ("trajstitch", 0, 2),
        ("trajstitch", 1, 2),
    ]
    assert scores() == found
