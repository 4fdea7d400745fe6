"""Tests that compaction does not change the last committed value of any key, in any order of events."""

from typing import Any

import compaction_model
import pytest
from compaction_model import CompactionModel
from explorer import explore, require_broken

from penstock.records.compact import Compactor, OffsetMap, TransactionScan


@pytest.mark.parametrize(
    "model",
    [CompactionModel(5, 2), CompactionModel(4, 3, max_keys=(1, 10))],
    ids=["five appends and two rounds", "four appends and three rounds, some with room for one key"],
)
def test_compaction_keeps_the_last_committed_record_of_each_key_in_all_short_histories(model: CompactionModel) -> None:
    found = explore(model)
    print(found)
    assert not found.broken, str(found)
    assert found.states > 1_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compaction_keeps_the_last_committed_record_of_each_key_in_longer_histories() -> None:
    found = explore(CompactionModel(5, 4, max_keys=(1, 10)))
    print(found)
    assert not found.broken, str(found)


def _any_data(self: TransactionScan, header: Any) -> bool:
    return False


def _markers_go_at_once(self: TransactionScan, header: Any, batch: Any) -> bool:
    return True


BUGS: dict[str, tuple[Any, str, Any, tuple[str, ...]]] = {
    "a round passes the last stable offset": (
        *(compaction_model, "first_uncleanable", lambda state: state.end),
        ("a=0", "producer 1: a=1", "a round"),
    ),
    "records of aborted transactions count": (
        *(TransactionScan, "data_is_aborted", _any_data),
        ("producer 1: a=", "producer 1 aborts", "a round"),
    ),
    "an older record of a key wins": (
        *(OffsetMap, "superseded", lambda self, key, offset: self._offsets.get(key, offset) != offset or offset > 0),
        ("a round",),
    ),
    "the last batch of a producer is dropped": (
        *(Compactor, "_is_last_of_producer", lambda self, header: False),
        ("producer 1: a=", "a round"),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_removing_any_one_rule_of_compaction_breaks_an_invariant_of_the_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, wrong, steps = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    found = explore(CompactionModel(5, 2))
    print(found)
    require_broken(found, steps)
