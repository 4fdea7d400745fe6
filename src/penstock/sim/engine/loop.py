"""Runs event loops in virtual time: one loop per simulated process, all driven by one `Timeline`.

The guarantees of asyncio hold: callbacks of `call_soon` run in the order of the calls, a timer never runs early. The
seed decides three things: which process runs first; the order of timers and arrivals that are due at the same time; and
how much virtual time a turn (one iteration of a process's loop) takes, often none.

    process   ready ──► picked ──► one turn: everything that was ready when the turn began ──► ready or idle
    time      moves only when no process is ready, to the next timer or arrival

A paused process keeps its timers and its arrivals and handles them when it resumes, as after SIGSTOP and SIGCONT. A
dead process drops everything. Threads and real sockets are refused: a node uses them only through `Disk` and `Network`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

#: More turns than this at one moment of virtual time are a livelock.
LIVELOCK_TURNS = 100_000
#: How often a coroutine of a dead process may await something before it is dropped.
MAX_AWAITS_AFTER_DEATH = 100


class SimulationError(Exception):
    """Raised if the run cannot continue (no process has anything to do) or does not end in time."""


class ProcessKilled(BaseException):
    """Unwinds the code of a process that dies inside a call. It is not an Exception, so that no handler catches it."""


class ProcessDied(Exception):
    """Raised in the caller of `run_in` if the other process dies before the work is done."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes an uncaught exception of a process."""

    time: float
    process: str
    message: str
    error: BaseException | None

    def __str__(self) -> str:
        why = f": {type(self.error).__name__}: {self.error}" if self.error is not None else ""
        return f"{self.process}: {self.message}{why}"


class _Soon(asyncio.Handle):
    """Implements a small asyncio handle, without the fields for debug mode, because a run makes a handle per
    callback."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: Any, context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def __repr__(self) -> str:
        return f"<soon {self._callback!r}>"

    def cancel(self) -> None:
        self._cancelled = True


def _nothing() -> None:
    """Does nothing. This function is the callback of cancelled timers."""


class _Timer(asyncio.TimerHandle):
    """Implements a small asyncio timer, without the fields for debug mode and for a heap of timers."""

    __slots__ = ()

    def __init__(self, when: float, callback: Callable[..., object], args: Any, context: Context | None) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def __repr__(self) -> str:
        return f"<timer {self._callback!r}>"

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()  # a cancelled timer stays in the timeline until it is due


class ProcessLoop(asyncio.AbstractEventLoop):
    """Runs the event loop of one simulated process."""

    def __init__(self, timeline: Timeline, name: str) -> None:
        self.timeline = timeline
        self.name = name
        self.dead = False
        self.stopped = False
        self.on_death: list[Callable[[], None]] = []
        #: Longest virtual time of a turn, in seconds; 0: turns take no time.
        self.turn_cost_s = 0.0
        #: Virtual time until which the process is inside a blocking call.
        self.busy_until = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        #: True if the process is in `runnable`, or returns there at `busy_until`.
        self.queued = False
        self._task_factory: Any = None
        self._exception_handler: Callable[[ProcessLoop, dict[str, Any]], object] | None = None

    def __repr__(self) -> str:
        return f"<process {self.name}{' (dead)' if self.dead else ' (stopped)' if self.stopped else ''}>"

    # Time and callbacks.

    def time(self) -> float:
        return self.timeline.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, context)
        if not self.dead:
            self.ready.append(handle)
            if not self.queued:
                self.queued = True
                self.timeline.runnable.append(self)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.timeline.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, context)
        if not self.dead:
            self.timeline.add_timer(when, self, timer)
        return timer

    # Futures and tasks.

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any) -> Any:
        if self.dead:
            coro.close()
        if self._task_factory is not None:
            return self._task_factory(self, coro, context=context)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self.dead:
            _silence(task)
        return task

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    # Other methods of an asyncio loop.

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Does nothing: asyncio's debug mode would read the real clock."""

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.timeline.failed(self, context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.dead:
            return
        if self._exception_handler is not None:
            self._exception_handler(self, context)
        else:
            self.default_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Does nothing: async generators are not tracked."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> NoReturn:
        raise SimulationError(f"{func!r} needs a thread, which a simulated process doesn't have: use Disk.run instead.")

    # The process.

    def stop(self) -> None:
        """Pauses the process, as SIGSTOP does."""
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        if self.ready and not self.queued:
            self.timeline.enqueue(self)

    def block(self, seconds: float) -> None:
        """Blocks the process for `seconds` of virtual time, as a synchronous call does."""
        self.busy_until = max(self.busy_until, self.timeline.now + seconds)

    def turn(self) -> None:
        """Runs all callbacks that are ready now, as one iteration of asyncio's loop does."""
        ready = self.ready
        for _ in range(len(ready)):
            if not ready:
                break  # the process died during the turn
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error})
        if self.turn_cost_s:
            self.block(self.timeline.random.uniform(0, self.turn_cost_s))

    def kill(self) -> None:
        """Kills the process: no callback runs any more, and its coroutines are closed."""
        if self.dead:
            return
        self.dead = True
        self.timeline.alive.pop(self, None)
        self.ready.clear()
        for notify in self.on_death:
            notify()
        self.on_death.clear()
        if self.timeline.running is self:
            # The process kills itself: coroutines on its stack can be closed only once the stack has unwound.
            self.timeline.at(self.timeline.now, self._close_tasks)
        else:
            self._close_tasks()

    def _close_tasks(self) -> None:
        with self.timeline.inside(self):
            for task in asyncio.all_tasks(self):
                _silence(task)
                _close(task.get_coro())


def _silence(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def _close(coroutine: Generator[Any, Any, Any] | Coroutine[Any, Any, Any] | None) -> None:
    """Ends a coroutine now, not at the next garbage collection. Exceptions of its `finally` blocks are dropped."""
    if coroutine is None:
        return
    for _ in range(MAX_AWAITS_AFTER_DEATH):
        try:
            coroutine.throw(ProcessKilled())  # a `finally` block may await something: throw again
        except BaseException:
            return


class Timeline:
    """Keeps the virtual time, and decides the order in which processes run."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.turns = 0
        self.running: ProcessLoop | None = None
        self.failures: list[Failure] = []
        self.alive: dict[ProcessLoop, None] = {}
        self._draw = random.random
        self._sequence = 0
        self._events: list[tuple[float, float, int, ProcessLoop | None, Any]] = []
        #: Processes with callbacks that are ready.
        self.runnable: list[ProcessLoop] = []

    def process(self, name: str) -> ProcessLoop:
        loop = ProcessLoop(self, name)  # type: ignore[abstract]
        self.alive[loop] = None
        return loop

    def end(self) -> None:
        """Kills all processes at the end of a run, so that none is left for the garbage collector."""
        for loop in list(self.alive):
            loop.kill()

    # Timers and events.

    def add_timer(self, when: float, loop: ProcessLoop, timer: asyncio.TimerHandle) -> None:
        self._sequence += 1
        heappush(self._events, (when, self._draw(), self._sequence, loop, timer))

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Schedules `callback` for the time `when`, outside any process. Used for events of the network and of
        disks."""
        self._sequence += 1
        heappush(self._events, (when, self._draw(), self._sequence, None, callback))

    def enqueue(self, loop: ProcessLoop) -> None:
        loop.queued = True
        self.runnable.append(loop)

    def failed(self, loop: ProcessLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(Failure(self.now, loop.name, str(context.get("message", "failed")), error))

    @contextmanager
    def inside(self, loop: ProcessLoop) -> Iterator[None]:
        before, self.running = self.running, loop
        outer = events._get_running_loop()
        events._set_running_loop(loop)
        try:
            yield
        finally:
            events._set_running_loop(outer)
            self.running = before

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Runs the block like a worker thread of the simulated process: blocking calls in it do not block the event
        loop."""
        before, self.running = self.running, None
        try:
            yield
        finally:
            self.running = before

    # Running.

    def run(self, main: Coroutine[Any, Any, T], loop: ProcessLoop, *, until: float = float("inf")) -> T:
        """Runs everything until `main`, a task of `loop`, is done, and returns its result.

        Raises SimulationError if the task is not done at the virtual time `until`.
        """
        task: asyncio.Task[T] = loop.create_task(main)
        idle_turns, last = 0, self.now
        outer = events._get_running_loop()
        try:
            while not task.done():
                self._step()
                if self.now > last:
                    idle_turns, last = 0, self.now
                    if last > until:
                        raise SimulationError(f"The run did not end within its bound of {until:.0f} s of virtual time.")
                idle_turns += 1
                if idle_turns > LIVELOCK_TURNS:
                    raise SimulationError(f"Livelock at {self.now:.3f} s: callbacks schedule each other without end.")
        finally:
            events._set_running_loop(outer)
        return task.result()

    def advance(self, until: float, may_go_on: Callable[[], bool]) -> None:
        """Runs all events that are due up to the time `until`; stops early when `may_go_on` returns False."""
        outer = events._get_running_loop()
        try:
            while self.runnable or (self._events and self._events[0][0] <= until):
                if not may_go_on():
                    return
                self._step()
            self.now = max(self.now, until)
        finally:
            events._set_running_loop(outer)

    @property
    def next_event(self) -> float:
        """Returns the time of the next timer or event; infinity if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Runs one iteration of the event loop of a ready process. If no process is ready, moves time to the next
        event."""
        outer = events._get_running_loop()
        try:
            self._step()
        finally:
            events._set_running_loop(outer)

    def _step(self) -> None:
        """Does the work of `step`. The caller resets asyncio's running loop, because a reset in each step would double
        the cost."""
        runnable = self.runnable
        if not runnable:
            if not self._events:
                raise SimulationError(
                    f"Deadlock at {self.now:.3f} s: no timer and no event is left, and the run is not over."
                )
            self.now = max(self.now, self._events[0][0])
        due = self._events
        if due and due[0][0] <= self.now:
            self._bring_due()
            if not runnable:
                return
        loop = runnable.pop()
        if runnable and (slot := int(self._draw() * (len(runnable) + 1))) < len(runnable):
            loop, runnable[slot] = runnable[slot], loop
        if loop.stopped or loop.dead:
            loop.queued = False  # `resume` enqueues it again
            return
        if loop.busy_until > self.now:
            self.at(loop.busy_until, partial(runnable.append, loop))
            return
        loop.queued = False
        self.turns += 1
        events._set_running_loop(loop)
        self.running = loop
        try:
            loop.turn()
        finally:
            self.running = None
        if loop.ready and not loop.queued:
            self.enqueue(loop)

    def _bring_due(self) -> None:
        """Runs the callbacks that are due, and passes due timers to their processes."""
        due, now = self._events, self.now
        while due and due[0][0] <= now:
            _, _, _, owner, event = heappop(due)
            if owner is None:
                event()
            elif not owner.dead and not event._cancelled:
                owner.ready.append(event)
                if not owner.queued:
                    self.enqueue(owner)


class Heap:
    """Holds the flag `frozen`: True after `freeze` was called. A process that makes many runs calls it first."""

    frozen = False

    @classmethod
    def freeze(cls) -> None:
        """Excludes all objects that exist now from later garbage collections.

        Otherwise the collections of every simulated run would scan all imported modules.
        """
        gc.collect()
        gc.freeze()
        cls.frozen = True


@contextmanager
def collected_by_hand() -> Iterator[None]:
    """Turns automatic garbage collection off while the block runs.

    Automatic collections would run finalizers of dead processes at random moments. Warnings about coroutines that were
    never awaited are dropped, because killed processes leave such coroutines behind.
    """
    was_on, hook = gc.isenabled(), sys.unraisablehook
    gc.disable()
    sys.unraisablehook = lambda told: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            if not Heap.frozen:
                gc.collect()  # garbage that is frozen would stay for ever
                gc.freeze()  # collections need not scan what was there before the run
            yield
            gc.collect()
    finally:
        if not Heap.frozen:
            gc.unfreeze()
        sys.unraisablehook = hook
        if was_on:
            gc.enable()


async def run_in(loop: ProcessLoop, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` in the process of `loop` and returns its result. Raises ProcessDied if that process dies first."""
    here = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = here.create_future()

    def finished(task: asyncio.Task[T]) -> None:
        def settle() -> None:
            if outcome.done():
                return
            if task.cancelled():
                outcome.cancel()
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        here.call_soon(settle)

    def died() -> None:
        def settle() -> None:
            if not outcome.done():
                outcome.set_exception(ProcessDied(f"{loop.name} died."))

        here.call_soon(settle)

    if loop.dead:
        work.close()
        raise ProcessDied(f"Process {loop.name} is not running: start its machine first.")
    with loop.timeline.inside(loop):
        task = loop.create_task(work)
        task.add_done_callback(finished)
    loop.on_death.append(died)
    try:
        return await outcome
    finally:
        if died in loop.on_death:
            loop.on_death.remove(died)
