from penstock.groups.timers import Timer, TimerKind, Timers


def timer(name: str) -> Timer:
    return Timer(TimerKind.SESSION, "group", name)


def test_timers_fire_in_order_of_their_deadlines() -> None:
    timers = Timers()
    late, early = timer("late"), timer("early")
    timers.set(late, 20)
    timers.set(early, 10)
    assert timers.due(9) == []
    assert timers.due(20) == [early, late]
    assert timers.next_deadline() is None


def test_a_timer_moved_to_a_later_deadline_adds_no_heap_entry_and_fires_at_that_deadline() -> None:
    timers = Timers()
    member = timer("member")
    timers.set(member, 10)
    member.deadline_ms = 30
    timers.set(member, 40)
    assert len(timers) == 1
    assert timers.due(10) == []
    assert timers.next_deadline() == 40
    assert timers.due(40) == [member]


def test_a_timer_moved_to_an_earlier_deadline_fires_once_at_that_deadline() -> None:
    timers = Timers()
    member = timer("member")
    timers.set(member, 30)
    timers.set(member, 10)
    assert timers.due(10) == [member]
    assert not member.armed
    assert timers.due(100) == []


def test_a_cancelled_timer_does_not_fire_and_can_be_set_again() -> None:
    timers = Timers()
    member = timer("member")
    timers.set(member, 10)
    member.cancel()
    timers.set(member, 20)
    assert timers.due(10) == []
    assert timers.due(20) == [member]
    member.cancel()
    assert timers.due(100) == []
