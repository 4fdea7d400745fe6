"""Tests plans: a seed always draws the same plan, and a fault or actor that is left out does not change the others."""

import pytest

from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.profiles import PROFILES
from penstock.sim.run.shrink import command


def test_a_seed_draws_the_same_plan_every_time() -> None:
    assert draw_plan(5, "hostile") == draw_plan(5, "hostile")
    assert draw_plan(5, "hostile") != draw_plan(6, "hostile")


def test_longer_run_of_a_seed_begins_with_the_faults_of_a_shorter_run() -> None:
    short, long = draw_plan(5, "hostile", duration_s=30), draw_plan(5, "hostile", duration_s=300)
    assert long.faults[: len(short.faults)] == short.faults
    assert len(long.faults) > len(short.faults)
    assert long.actors == short.actors


def test_every_simulator_profile_plans_only_its_own_kinds_of_faults() -> None:
    for name, profile in PROFILES.items():
        kinds = {fault.kind for seed in range(30) for fault in draw_plan(seed, name).faults}
        assert kinds <= set(profile.faults)
        assert bool(kinds) == bool(profile.faults)


def test_different_seeds_draw_different_kinds_of_faults_and_actors() -> None:
    plans = [draw_plan(seed, "hostile", duration_s=300) for seed in range(20)]
    assert len({frozenset(fault.kind for fault in plan.faults) for plan in plans}) > 15
    assert len({tuple(actor.kind for actor in plan.actors) for plan in plans}) > 15


def test_plan_of_a_simulated_run_can_be_reduced_to_the_named_faults_and_clients() -> None:
    whole = draw_plan(5, "hostile", duration_s=60)
    part = whole.only(faults=frozenset({2, 3}), actors=frozenset({1}))
    assert [fault.index for fault in part.faults] == [2, 3]
    assert [actor.index for actor in part.actors] == [1]
    assert part.faults == whole.faults[1:3]
    assert part.topics == whole.topics


@pytest.mark.parametrize(
    ("faults", "actors", "expected"),
    [
        (None, None, "penstock sim --seed 5 --profile power --seconds 30"),
        ({1}, None, "penstock sim --seed 5 --profile power --seconds 30 --faults 1"),
        (set(), {1, 2}, "penstock sim --seed 5 --profile power --seconds 30 --faults none --actors 1,2"),
    ],
)
def test_command_of_a_shrunk_run_lists_its_faults_and_actors(
    faults: set[int] | None, actors: set[int] | None, expected: str
) -> None:
    whole = draw_plan(5, "power", duration_s=30)
    part = whole.only(None if faults is None else frozenset(faults), None if actors is None else frozenset(actors))
    assert command(part) == expected
