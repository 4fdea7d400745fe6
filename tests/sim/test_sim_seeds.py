"""Tests that some seeds of every profile break no rule, and that a seed gives the same trace in each process."""

import json
import os
import subprocess
import sys

import pytest

from penstock.client.consumer import Consumer
from penstock.client.fetched import Fetched
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.profiles import PROFILES
from penstock.sim.run.simulation import Verdict, run_plan


def broken(verdict: Verdict) -> list[str]:
    return [str(violation) for violation in verdict.violations]


#: Seeds for every run of the tests; more seeds are marked slow, or run by `make sim`.
ONE_MACHINE, THREE_MACHINES = (11,), (12,)


@pytest.mark.parametrize("seed", ONE_MACHINE)
@pytest.mark.parametrize("profile", PROFILES)
def test_simulated_runs_of_one_machine_break_no_rule_in_any_profile(profile: str, seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, profile, duration_s=8))) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
@pytest.mark.parametrize("profile", PROFILES)
def test_simulated_runs_of_one_machine_with_additional_seeds_break_no_rule(profile: str, seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, profile, duration_s=60))) == []


@pytest.mark.parametrize("seed", THREE_MACHINES)
@pytest.mark.parametrize("profile", PROFILES)
def test_simulated_runs_of_three_machines_break_no_rule_in_any_profile(profile: str, seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, profile, nodes=3, duration_s=15))) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("profile", PROFILES)
def test_simulated_runs_of_three_machines_with_additional_seeds_break_no_rule(profile: str, seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, profile, nodes=3, duration_s=60))) == []


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 4, 5, 6, 7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_simulated_runs_of_two_and_of_four_to_seven_machines_break_no_rule(nodes: int, seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, "hostile", nodes=nodes, duration_s=40))) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 220))
def test_simulated_runs_of_three_machines_for_ten_minutes_break_no_rule(seed: int) -> None:
    assert broken(run_plan(draw_plan(seed, "hostile", nodes=3, duration_s=600))) == []


def digest(seed: int, hash_seed: int, *, seconds: float, nodes: int = 1) -> str:
    words = ["sim", "--seed", str(seed), "--seconds", str(seconds), "--output", "json", "--no-shrink"]
    words += ["--nodes", str(nodes)]
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


def test_simulated_run_of_a_seed_has_the_same_trace_in_processes_with_different_hash_seeds() -> None:
    assert digest(2, 1, seconds=5) == digest(2, 2, seconds=5)


def test_simulated_run_of_three_machines_has_the_same_trace_with_different_hash_seeds() -> None:
    assert digest(2, 1, seconds=12, nodes=3) == digest(2, 2, seconds=12, nodes=3)


def test_long_simulated_run_has_the_same_trace_when_it_is_repeated() -> None:
    """Memory addresses differ from run to run, so no order may depend on them."""

    def run() -> str:
        return run_plan(draw_plan(3, "calm", nodes=3, duration_s=620).only(frozenset(), frozenset({1, 2}))).digest

    first, litter = run(), [bytearray(size % 600) for size in range(0, 600_000, 37)]
    del litter[::2]
    assert run() == first


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 34))
@pytest.mark.parametrize("nodes", [3, 5])
def test_repeated_simulated_run_of_a_cluster_has_the_same_trace_with_additional_seeds(nodes: int, seed: int) -> None:
    assert digest(seed, 1, seconds=40, nodes=nodes) == digest(seed, 2, seconds=40, nodes=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 40))
def test_repeated_simulated_run_of_one_machine_has_the_same_trace_with_additional_seeds(seed: int) -> None:
    assert digest(seed, 1, seconds=40) == digest(seed, 2, seconds=40)


def test_different_seeds_give_different_traces() -> None:
    digests = {run_plan(draw_plan(seed, "calm", duration_s=1)).digest for seed in (1, 2, 3)}
    assert len(digests) == 3


def test_log_of_a_simulated_run_lists_starts_and_power_losses_of_machines() -> None:
    verdict = run_plan(draw_plan(12, "power", duration_s=15))
    told = " ".join(event.what for event in verdict.story)
    assert "serves" in told
    assert "loses power" in told
    assert verdict.counts["machine starts"] > 2


def test_readers_with_a_rack_fetch_from_followers_in_that_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, preferred = Consumer._fetch, 0

    async def counted(self: Consumer, node: int, positions: dict[TopicPartition, int]) -> list[Fetched]:
        nonlocal preferred
        preferred += any(self._preferred.get(partition) == node for partition in positions)
        return await fetch(self, node, positions)

    monkeypatch.setattr(Consumer, "_fetch", counted)
    verdict = run_plan(draw_plan(4, "reassign", nodes=4, duration_s=10).only(faults=frozenset()))
    assert broken(verdict) == []
    assert preferred > 0
