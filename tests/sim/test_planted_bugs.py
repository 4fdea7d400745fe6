"""Every planted bug is found within a bounded number of seeds, and none is reported where none is planted."""

import pytest

from penstock.sim.plan import draw_plan
from penstock.sim.planted import PLANTS, SEEDS
from penstock.sim.world import run_plan

#: Seeds that find theirs soon: quick enough for each run of the tests.
EASY = {
    "duplicates-written": (2, 13.0),
    "open-transactions-shown": (5, 3.0),
    "watermark-without-followers": (2, 20.0),
}


@pytest.mark.parametrize("name", EASY)
def test_a_planted_bug_is_found_by_a_seed_that_finds_nothing_without_it(name: str) -> None:
    plant = PLANTS[name]
    seed, seconds = EASY[name]
    plan = draw_plan(seed, plant.profile, nodes=plant.nodes, duration_s=seconds)
    with plant.planted():
        assert not run_plan(plan).ok
    assert [str(violation) for violation in run_plan(plan).violations] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, plant in PLANTS.items() if not plant.rare])
def test_every_planted_bug_is_found_within_a_bounded_number_of_seeds(name: str) -> None:
    plant = PLANTS[name]
    for seed in range(1, SEEDS + 1):
        plan = draw_plan(seed, plant.profile, nodes=plant.nodes, duration_s=plant.seconds)
        with plant.planted():
            if not run_plan(plan).ok:
                break
    else:
        pytest.fail(f"{SEEDS} seeds of profile {plant.profile} did not find that {plant.about}")
    assert [str(violation) for violation in run_plan(plan).violations] == []


def test_a_plant_is_gone_when_its_context_ends() -> None:
    for plant in PLANTS.values():
        before = [owner.__dict__[name] for owner, name, _ in plant.replacements]
        with plant.planted():
            during = [owner.__dict__[name] for owner, name, _ in plant.replacements]
        assert all(one is not other for one, other in zip(before, during))
        assert [owner.__dict__[name] for owner, name, _ in plant.replacements] == before
