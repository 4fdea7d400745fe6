import random
import weakref

from transaction_driver import TIMEOUT_MS, Driver

from penstock.transactions.deadlines import Deadline, Deadlines


def deadline(at_ms: int, name: str = "tx") -> Deadline:
    return Deadline(at_ms, name, 1, 0, at_ms)


def test_each_transaction_deadline_is_returned_once_and_in_order_of_time() -> None:
    deadlines = Deadlines()
    for at_ms, name in ((30, "c"), (10, "a"), (20, "b")):
        deadlines.add(deadline(at_ms, name))
    assert deadlines.next_ms() == 10
    assert deadlines.due(9) == []
    assert [each.transactional_id for each in deadlines.due(25)] == ["a", "b"]
    assert [each.transactional_id for each in deadlines.due(99)] == ["c"]
    assert deadlines.next_ms() is None


def test_later_deadline_replaces_the_previous_deadline() -> None:
    deadlines = Deadlines()
    deadlines.add(deadline(10))
    deadlines.add(deadline(50))
    assert deadlines.due(10) == []
    assert deadlines.next_ms() == 50
    assert deadlines.due(50) == [deadline(50)]


def test_earlier_deadline_replaces_the_previous_deadline() -> None:
    deadlines = Deadlines()
    deadlines.add(deadline(50))
    deadlines.add(deadline(10))
    assert deadlines.due(10) == [deadline(10)]
    assert deadlines.due(99) == []


def test_transaction_deadline_is_removed_from_memory_once_it_is_due() -> None:
    class Name(str): ...

    deadlines, name = Deadlines(), Name("tx")
    held = weakref.ref(name)
    deadlines.add(deadline(10, name))
    del name
    assert deadlines.due(10)
    assert held() is None


def test_only_the_last_deadline_of_a_transactional_id_takes_effect() -> None:
    source = random.Random(3)
    deadlines = Deadlines()
    wanted: dict[str, int] = {}
    now_ms = 0
    for _ in range(3000):
        name = source.choice("abcdef")
        if source.random() < 0.7:
            wanted[name] = now_ms + source.randrange(1, 100)
            deadlines.add(deadline(wanted[name], name))
        else:
            now_ms += source.randrange(40)
            expected = {name for name, at_ms in wanted.items() if at_ms <= now_ms}
            assert {each.transactional_id for each in deadlines.due(now_ms)} == expected
            for name in expected:
                del wanted[name]
        assert all(deadlines.next_ms() <= at_ms for at_ms in wanted.values())  # type: ignore[operator]


def test_producer_with_many_transactions_has_one_deadline() -> None:
    driver = Driver()
    who = driver.init()
    for _ in range(500):
        driver.add(who)
        who = driver.commit(who)
        driver.write_markers()
        driver.advance(TIMEOUT_MS // 50)
    assert len(driver.shard.deadlines) == 1
