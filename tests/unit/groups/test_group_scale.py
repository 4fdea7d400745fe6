from time import perf_counter

from group_driver import SESSION_MS, Driver

from penstock.groups import membership
from penstock.protocol.errors import ErrorCode


def test_ten_thousand_members_beat_for_a_few_microseconds_each() -> None:
    driver = Driver()
    seats = [(f"g{index}", member) for index in range(1000) for member in driver.stable(10, group=f"g{index}")]
    generation = 10  # every newcomer made a new one
    shard, now_ms = driver.shard, driver.now_ms
    started = perf_counter()
    for group_id, member_id in seats:
        assert membership.heartbeat(shard, group_id, generation, member_id, None, now_ms) is ErrorCode.NONE
    assert (perf_counter() - started) / len(seats) < 50e-6  # about 1 µs here; wide, for busy machines
    # a timer is queued once per member, not once per beat, besides those of the first join
    for _ in range(6):
        driver.advance(SESSION_MS // 2)
        for group_id, member_id in seats:
            driver.heartbeat(member_id, generation, group=group_id)
    assert len(shard.timers) <= 3 * len(seats)
    assert all(group.state == "Stable" for group in shard.groups.values())
