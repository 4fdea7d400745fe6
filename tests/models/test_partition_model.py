"""Tests that no reachable state of a partition loses committed records, and that a missing rule is found."""

from collections.abc import Callable
from typing import Any

import pytest
from explorer import explore, require_broken
from partition_model import Budget, PartitionModel

from penstock.metadata.controller import alter_partition, brokers, partition_change
from penstock.metadata.controller.broker_states import after_clean_shutdown
from penstock.protocol.errors import ErrorCode
from penstock.replication.leader import Leading

ALL, TWO = (1, 2, 3), (1, 2)


@pytest.mark.parametrize(
    ("isr", "budget"),
    [
        (TWO, Budget(records=2)),
        (TWO, Budget(fences=1)),
        (TWO, Budget(shrinks=1)),
        (ALL, Budget(fences=1)),
        (ALL, Budget(kills=1)),
        (ALL, Budget(power_losses=1)),
        (ALL, Budget(shrinks=1)),
    ],
    ids=str,
)
def test_partition_model_never_elects_a_replica_that_lacks_committed_records(
    isr: tuple[int, ...], budget: Budget
) -> None:
    found = explore(PartitionModel(budget, isr))
    print(found)
    assert not found.broken, str(found)
    assert found.states > 400


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("isr", "budget"),
    [(TWO, Budget(kills=1)), (TWO, Budget(power_losses=1))],
    ids=str,
)
def test_larger_partition_model_never_elects_a_replica_that_lacks_committed_records(
    isr: tuple[int, ...], budget: Budget
) -> None:
    found = explore(PartitionModel(budget, isr), most_states=5_000_000)
    print(found)
    assert not found.broken, str(found)


def test_alter_partition_requests_with_an_old_epoch_have_no_effect_in_the_model() -> None:
    found = explore(PartitionModel(Budget(shrinks=1), TWO, keep_late=True))
    print(found)
    assert not found.broken, str(found)


# Rules that are taken away.


def _high_watermark_of_the_committed_isr(self: Leading, own_end: int, *_: Any) -> int:
    return min([own_end, *(each.log_end for each in self.followers.values() if each.broker_id in self.isr)])


def _may_join_below_the_epoch_start(self: Leading, follower: Any, high_watermark: int, known: Any) -> bool:
    return (
        self.proposal is None
        and follower.broker_id not in self.maximal_isr
        and follower.log_end >= high_watermark
        and self.is_eligible(follower, known)
    )


def _eligible_after_a_power_loss(change: Any, target: Any) -> list[int]:
    if len(target.isr) >= change.rules.min_isr(change.image, change.topic):
        return []
    before = dict.fromkeys((*change.partition.elr, *change.partition.isr))
    return [each for each in before if each not in target.isr]


def _every_shutdown_is_clean(image: Any, registration: Any, rules: Any) -> list[Any]:
    return after_clean_shutdown(image, registration.broker_id, rules, registration.log_dirs)


def _any_incarnation(image: Any, broker_id: int, epoch: int) -> bool:
    return bool(image.brokers[broker_id].usable)


BUGS: dict[str, tuple[Any, str, Callable[..., Any], Budget, tuple[str, ...]]] = {
    "the high watermark counts only the committed ISR": (
        *(Leading, "high_watermark", _high_watermark_of_the_committed_isr, Budget()),
        ("n3 fetches from n1 at offset 0, which proposes ISR (1, 2, 3)", "controller answers NONE to ISR (1, 2, 3)"),
    ),
    "a leader commits with fewer replicas than min.insync.replicas": (
        *(Leading, "is_under_min_isr", lambda self, needed: False, Budget(fences=1)),
        ("controller fences n2: leader 1 in epoch 0, ISR (1,), eligible (2,)",),
    ),
    "a follower joins before it has the start of the leader's epoch": (
        *(Leading, "may_join", _may_join_below_the_epoch_start, Budget(fences=1)),
        ("controller fences n1: leader 2 in epoch 1", "n3 fetches from n2 at offset 0, which proposes ISR (2, 3)"),
    ),
    "a replica stays eligible after a power loss": (
        *(partition_change, "eligible_leaders", _eligible_after_a_power_loss, Budget(power_losses=1)),
        ("n1 loses power and keeps 0 records", "eligible (1,)"),
    ),
    "a power loss counts as a kill": (
        *(brokers, "_records_after_shutdown", _every_shutdown_is_clean, Budget(power_losses=1)),
        ("n1 loses power and keeps 0 records", "eligible (1,)"),
    ),
    "an ISR change names an incarnation that has ended": (
        *(alter_partition, "is_eligible", _any_incarnation, Budget(power_losses=1)),
        ("which proposes ISR (1, 2, 3)", "n3 loses power", "controller unfences n3", "controller answers NONE"),
    ),
    "an ISR change with an old partition epoch is granted": (
        *(alter_partition, "_stale", lambda *_: ErrorCode.NONE, Budget(shrinks=1)),
        ("proposes ISR (1, 2, 3)", "controller answers NONE to ISR (1, 2, 3)"),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_removing_any_one_rule_of_replication_breaks_an_invariant_of_the_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, wrong, budget, steps = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    found = explore(PartitionModel(budget, TWO, keep_late=attribute == "_stale"))
    print(found)
    require_broken(found, steps)
