"""Some seeds of every profile, judged; and the same seed twice, in processes whose hashes differ."""

import json
import os
import subprocess
import sys

import pytest

from penstock.sim.plan import PROFILES, draw_plan
from penstock.sim.world import Verdict, run_plan


def broken(verdict: Verdict) -> list[str]:
    return [str(violation) for violation in verdict.violations]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_seed_of_every_profile_keeps_all_promises(profile: str) -> None:
    assert broken(run_plan(draw_plan(11, profile, duration_s=8))) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
@pytest.mark.parametrize("profile", PROFILES)
def test_more_seeds_of_every_profile(profile: str, seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, profile, duration_s=60))) == []


def digest(seed: int, hash_seed: int, *, seconds: float) -> str:
    words = ["sim", "--seed", str(seed), "--seconds", str(seconds), "--output", "json", "--no-shrink"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    found: str = json.loads(done.stdout)["trace"]
    return found


def test_a_seed_gives_the_same_trace_in_processes_with_different_hash_seeds() -> None:
    assert digest(2, 1, seconds=5) == digest(2, 2, seconds=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 40))
def test_more_seeds_give_the_same_trace_twice(seed: int) -> None:
    assert digest(seed, 1, seconds=40) == digest(seed, 2, seconds=40)


def test_different_seeds_give_different_traces() -> None:
    digests = {run_plan(draw_plan(seed, "calm", duration_s=1)).digest for seed in (1, 2, 3)}
    assert len(digests) == 3


def test_the_story_says_what_was_done_to_machines() -> None:
    verdict = run_plan(draw_plan(12, "power", duration_s=15))
    told = " ".join(event.what for event in verdict.story)
    assert "serves" in told
    assert "loses power" in told
    assert verdict.counts["machine starts"] > 2
