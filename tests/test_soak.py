"""A soak is kept line by line, so that a second call goes on where the first one ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from soak.__main__ import Record, runs

TESTS = Path(__file__).parent


def outcome(case: int, verdict: str = "same", detail: str = "") -> dict[str, Any]:
    return {"case": case, "verdict": verdict, "detail": detail}


def soak(folder: Path, *words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "soak", "--processes", "1", "--record", "kept.jsonl", "--page", "page.md", *words]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )


def test_a_second_call_tries_again_what_failed_and_then_what_was_not_tried(tmp_path):
    record = Record(tmp_path / "kept.jsonl", "abc")
    for one in (outcome(0), outcome(1, "failed", "a line\nanother"), outcome(2), outcome(5)):
        record.add("flips", one, 0.5)
    again = Record(tmp_path / "kept.jsonl", "def")
    assert again.due("flips", range(8)) == [1, 3, 4, 6, 7]
    assert again.found["flips", 1]["detail"] == "another"
    again.add("flips", outcome(1), 0.5)
    assert Record(tmp_path / "kept.jsonl", "def").due("flips", range(8)) == [3, 4, 6, 7]
    assert again.due("races", range(2)) == [0, 1]


def test_a_line_that_was_being_written_when_the_machine_stopped_is_tried_again(tmp_path):
    record = Record(tmp_path / "kept.jsonl", "abc")
    for case in range(3):
        record.add("flips", outcome(case), 0.5)
    content = record.path.read_text()
    record.path.write_text(content[: len(content) - 20])
    again = Record(record.path, "abc")
    assert again.due("flips", range(3)) == [2]
    again.add("flips", outcome(2), 0.5)
    assert Record(record.path, "abc").due("flips", range(3)) == []


def test_cases_that_follow_each_other_share_a_process():
    assert runs([]) == []
    assert runs([7, 0, 1, 2, 4]) == [(7, 1), (0, 3), (4, 1)]


def test_two_calls_make_one_page_of_all_that_was_tried(tmp_path):
    for count in (3, 5):
        called = soak(tmp_path, "--kinds", "flips", "--count", str(count))
        printed = called.communicate()[0]
        assert called.returncode == 0, printed
        assert f"flips: {count} tried" in printed
    page = (tmp_path / "page.md").read_text()
    assert "| 5 | 8,000 | 0 |" in page
    assert "Nothing." in page
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [one["case"] for one in kept] == list(range(5))


def test_ctrl_c_is_no_failure_and_loses_nothing(tmp_path):
    called = soak(tmp_path, "--kinds", "flips")
    while not (tmp_path / "kept.jsonl").exists() or len((tmp_path / "kept.jsonl").read_text().splitlines()) < 5:
        assert called.poll() is None
        time.sleep(0.05)
    called.send_signal(signal.SIGINT)
    called.communicate()
    assert called.returncode == 130
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [one["case"] for one in kept] == list(range(len(kept)))
    assert not [one for one in kept if one["verdict"] == "failed"]
    assert f"| {len(kept):,} | 8,000 | 0 |" in (tmp_path / "page.md").read_text()
