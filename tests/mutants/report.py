"""The page of what was tried: the share that was noticed, room by room, and everything that survived."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from mutants.faults import CHOSEN, Fault
from trajstitch.storage.markdown import markdown_table

ROOMS = ("stitching", "models", "learning", "policies")


HEAD = (
    *("room", "faults", "tried"),
    *("noticed when first tried", "of those that change what is computed"),
    *("noticed now", "of those that change what is computed"),
)
EARLIER = (
    "An earlier sample of {tried} faults, drawn with seed {seed}, whose verdicts are not kept: {noticed} were noticed, "
    "{real} of those that change what is computed, of which tests had been written for some. {since}"
)


def write_page(page: Path, faults: Sequence[Fault], tried: Sequence[dict[str, Any]], seed: int) -> None:
    """Write the page from what was tried."""
    reasons = tomllib.loads((Path(__file__).parent / "survivors.toml").read_text())
    counted = [one for one in tried if one["verdict"] != "unclear"]
    chosen = [one for one in counted if one["operator"] == CHOSEN]
    survivors = [one for one in counted if one["verdict"] == "survived"]
    counted = [one for one in counted if one["operator"] != CHOSEN]
    unequal = [one for one in counted if not _reason(one, reasons).startswith("equivalent")]
    rows = []
    for room in (*ROOMS, ""):
        own = [one for one in counted if one["path"].startswith(room)]
        real = [one for one in unequal if one["path"].startswith(room)]
        of_room = sum(fault.path.startswith(room) for fault in faults)
        shares = (_share(own, "first"), _share(real, "first"), _share(own), _share(real))
        rows.append((room or "all", f"{of_room:,}", f"{len(own):,}", *shares))
    how = Counter("no end" if one["by"].startswith("(") else "a test" for one in counted if one["verdict"] == "noticed")
    unclear = sum(one["verdict"] == "unclear" for one in tried)
    drawn = [one for one in tried if one["operator"] != CHOSEN]
    text = [
        "# Mutants",
        "",
        "Small faults put into the core one at a time, and whether the nearest tests of the file notice "
        f"(`tests/mutants/nearest.py`). {len(drawn):,} of {len(faults):,} faults, drawn with seed {seed}: cosmic-ray's "
        "operators, and names that are easily taken for each other (`tests/mutants/faults.py`). Left out are "
        "annotations, decorators, imports, assertions and the text of errors and logs. Types and shapes are not "
        "checked here, as they are in `make test`. Intervals are of 95 % (Wilson), for all faults of the room.",
        "",
        f"Beside them {len(chosen)} faults chosen by hand (`tests/mutants/sabotages.py`), such as the highest instead "
        f"of the lowest predicted reward: {sum(one['verdict'] == 'noticed' for one in chosen)} are noticed.",
        "",
        markdown_table(HEAD, rows),
        "",
        f"Noticed by {how['a test']:,} failing tests, and {how['no end']:,} times because the tests came to no end"
        + (f"; {unclear} were left out, as the test fails without the fault too." if unclear else "."),
        "",
        "Tests were added for faults that had survived, and those tried again. So only the shares when the faults were "
        "first tried are of faults that no test was written for: `--seed` draws others.",
        "",
        *[f"{EARLIER.format(**sample)}\n" for sample in reasons.get("earlier", [])],
        "## What survives, and why",
        "",
        markdown_table(
            ("where", "fault", "why"),
            [
                (
                    f"{one['path']}:{one['line']}",
                    f"`{one['before']}` → `{one['after']}`".replace("|", "\\|"),
                    _reason(one, reasons) or "**not looked into**",
                )
                for one in sorted(survivors, key=lambda one: (one["path"], one["line"]))
            ],
        ),
        "",
        "Made by `make mutants`.",
    ]
    page.write_text("\n".join(text) + "\n")


def _reason(one: dict[str, Any], reasons: dict[str, Any]) -> str:
    """Return why a fault survives, or nothing if nobody has looked."""
    if one["verdict"] != "survived":
        return ""
    for entry in reasons.get("survivor", []):
        if one["path"] == entry["path"] and entry["after"] == one["after"]:
            return entry["why"]
    return ""


def _share(tried: Sequence[dict[str, Any]], when: str = "verdict") -> str:
    """Return the share that was noticed, by the last verdicts or the `first` ones, with its interval."""
    if not tried:
        return "–"
    noticed = sum(one[when] == "noticed" for one in tried)
    interval = binomtest(noticed, len(tried)).proportion_ci(method="wilson")
    return f"{noticed / len(tried):.0%} [{interval.low:.0%}, {interval.high:.0%}]"
