"""Models a partition with three replicas: AlterPartition, eligible leaders (KIP-966) and registrations.

Brokers register again after kills and power losses (KIP-903 and the boot-id rule).

The node's own functions decide for the controller, track the leader's followers, and truncate followers. The model adds
their environment: brokers that learn metadata late, requests and responses that arrive late, twice or never, processes
that are killed, and machines that lose power. The model has no time: a follower may be removed from the ISR, and a
broker may be fenced, at any moment.

Not modelled: late fetches, reassignment, several directories, changes of configs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from penstock.log.epochs import LeaderEpochCache
from penstock.metadata.apply import apply
from penstock.metadata.controller import alter_partition, broker_states, brokers
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_56_alter_partition as api_56
from penstock.replication import follower as follower_side
from penstock.replication.epochs import newest_epoch_end
from penstock.replication.leader import NEVER_MS, Leading, Progress, Proposal

ID = bytes([1] * 16)
FEATURES = {"metadata.version": 30, "eligible.leader.replicas.version": 1}
MIN_ISR = 2
RULES = Rules()
NO_EPOCH = -1
Log = tuple[tuple[int, int], ...]
"""Records as (leader epoch, number)."""


class Registered(NamedTuple):
    """Holds the controller's view of one broker."""

    epoch: int
    incarnation: int
    fenced: bool


class View(NamedTuple):
    """Holds the metadata at one moment."""

    part: PartitionImage
    brokers: tuple[Registered, ...]


class Led(NamedTuple):
    """Holds the fields of `Leading` as a hashable value."""

    leader_epoch: int
    epoch_start: int
    isr: tuple[int, ...]
    partition_epoch: int
    proposal: Proposal | None
    largest: frozenset[int]
    followers: tuple[tuple[int, int, int], ...]
    """(broker id, end of its log, broker epoch)"""


class Node(NamedTuple):
    up: bool
    lossy: bool
    """True from a power loss until the controller knows of it."""
    incarnation: int
    epoch: int
    """The broker epoch that this process was told; -1 before."""
    noted_epoch: int
    noted_incarnation: int
    """What the disk says for the next process: the last epoch, and the incarnation that asked for a new one."""
    view: View | None
    log: Log
    high_watermark: int
    led: Led | None


class Asking(NamedTuple):
    """Holds an AlterPartition request in flight."""

    broker_id: int
    broker_epoch: int
    proposal: Proposal


class Answer(NamedTuple):
    broker_id: int
    proposal: Proposal
    code: ErrorCode
    isr: tuple[int, ...] = ()
    leader_epoch: int = 0
    partition_epoch: int = 0


class Arriving(NamedTuple):
    """Holds a registration request in flight."""

    broker_id: int
    incarnation: int
    previous: int
    ended: int


class Budget(NamedTuple):
    """Holds how many times each event of the environment may still happen."""

    records: int = 1
    kills: int = 0
    power_losses: int = 0
    fences: int = 0
    """Fences of a broker that runs; a broker that is down may be fenced at any time."""
    shrinks: int = 0


class State(NamedTuple):
    view: View
    nodes: tuple[Node, ...]
    asking: frozenset[Asking]
    answers: frozenset[Answer]
    arriving: frozenset[Arriving]
    committed: Log
    budget: Budget

    def node(self, broker_id: int) -> Node:
        return self.nodes[broker_id - 1]

    def with_node(self, broker_id: int, node: Node) -> State:
        return self._replace(nodes=(*self.nodes[: broker_id - 1], node, *self.nodes[broker_id:]))


@lru_cache(maxsize=1 << 14)
def image_of(view: View) -> MetadataImage:
    topic = TopicImage("t", ID, {0: view.part})
    return MetadataImage(
        offset=max(one.epoch for one in view.brokers),  # the next registration gets the next epoch
        features=FEATURES,
        brokers=broker_images(view.brokers),
        topics={"t": topic},
        topics_by_id={ID: topic},
        partition_count=1,
        configs={(2, "t"): {"min.insync.replicas": str(MIN_ISR)}},
        names_by_collision_key=EMPTY_IMAGE.names_by_collision_key,
    )


@lru_cache(maxsize=1 << 14)
def broker_images(registered: tuple[Registered, ...]) -> dict[int, BrokerImage]:
    return {
        broker_id: BrokerImage(broker_id, one.epoch, _uuid(one.incarnation), {}, fenced=one.fenced)
        for broker_id, one in enumerate(registered, 1)
    }


def _uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def after(view: View, records: Sequence[Any]) -> View:
    """Returns the controller's view of the metadata after it has committed the given records."""
    image = apply(image_of(view), records)
    known = tuple(
        Registered(one.epoch, int.from_bytes(one.incarnation_id, "big"), one.fenced)
        for _, one in sorted(image.brokers.items())
    )
    return View(image.topics["t"].partitions[0], known)


def thaw(broker_id: int, led: Led, part: PartitionImage) -> Leading:
    leading = Leading(broker_id, part, led.epoch_start, 0)
    leading.leader_epoch = led.leader_epoch
    leading.isr, leading.partition_epoch, leading.proposal = led.isr, led.partition_epoch, led.proposal
    leading._largest = led.largest
    for follower_id, end, epoch in led.followers:
        progress = Progress(follower_id, NEVER_MS, 0)
        progress.log_end, progress.broker_epoch = end, epoch
        leading.followers[follower_id] = progress
    return leading


def freeze(leading: Leading) -> Led:
    return Led(
        leading.leader_epoch,
        leading.epoch_start,
        leading.isr,
        leading.partition_epoch,
        leading.proposal,
        leading._largest,
        tuple((one.broker_id, one.log_end, one.broker_epoch) for one in leading.followers.values()),
    )


def epochs_of(log: Log) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, (epoch, _) in enumerate(log):
        cache.assign(epoch, offset)
    return cache


class PartitionModel:
    """Models one partition. At first the given replicas are in sync, and all brokers know that broker 1 leads."""

    def __init__(self, budget: Budget, isr: tuple[int, ...] = (1, 2, 3), *, keep_late: bool = False) -> None:
        """Creates the model. With `keep_late`, refused requests with an old epoch stay in flight."""
        self._budget = budget
        self._keep_late = keep_late
        self._ids = (1, 2, 3)
        self._isr = isr

    def first(self) -> State:
        part = PartitionImage(self._ids, self._isr, 1)
        view = View(part, tuple(Registered(each, each, False) for each in self._ids))
        nodes = []
        for each in self._ids:
            led = freeze(Leading(1, part, 0, 0)) if each == 1 else None
            nodes.append(Node(True, False, each, each, each, 0, view, (), 0, led))
        return State(view, tuple(nodes), frozenset(), frozenset(), frozenset(), (), self._budget)

    # Invariants.

    def broken(self, state: State) -> str:
        part, committed = state.view.part, state.committed
        if committed == (DIVERGED,):
            return "two leaders committed different records at one offset"
        if part.leader > 0 and not self._has(state, part.leader, committed):
            return f"leader {part.leader} of epoch {part.leader_epoch} lacks committed records"
        for each in (*part.isr, *part.elr):
            if not self._has(state, each, committed):
                return f"replica {each} may be elected and lacks committed records"
        return ""

    @staticmethod
    def _has(state: State, broker_id: int, committed: Log) -> bool:
        node = state.node(broker_id)
        return node.lossy or node.log[: len(committed)] == committed

    # Steps.

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for each in self._ids:
            node = state.node(each)
            if node.up:
                yield from self._steps_of_process(state, each, node)
            else:
                yield f"n{each} starts and registers", self._start(state, each, node)
        for asking in state.asking:
            yield from self._deliver(state, asking)
        for answer in state.answers:
            yield (
                f"n{answer.broker_id} hears {answer.code.name} to ISR {answer.proposal.isr}",
                self._hear(state, answer),
            )
        for arriving in state.arriving:
            yield self._register(state, arriving)
        yield from self._controller(state)

    def _steps_of_process(self, state: State, each: int, node: Node) -> Iterator[tuple[str, State]]:
        budget = state.budget
        if node.epoch != NO_EPOCH and node.view != state.view:
            yield f"n{each} learns {_shown(state.view)}", self._learn(state, each, node)
        if node.led is not None and node.view is not None:
            yield from self._lead(state, each, node, node.view, node.led)
        elif node.view is not None and node.view.part.leader > 0:
            yield from self._fetch(state, each, node, node.view)
        if budget.kills:
            spent = state._replace(budget=budget._replace(kills=budget.kills - 1))
            yield f"n{each} is killed", spent.with_node(each, _down(node))
        if budget.power_losses:
            spent = state._replace(budget=budget._replace(power_losses=budget.power_losses - 1))
            for kept in range(len(node.log) + 1):
                lost = _down(node)._replace(
                    log=node.log[:kept],
                    high_watermark=min(node.high_watermark, kept),
                    lossy=True,
                    noted_epoch=NO_EPOCH,
                    noted_incarnation=0,
                )
                yield f"n{each} loses power and keeps {kept} records", spent.with_node(each, lost)

    # A leader.

    def _lead(self, state: State, each: int, node: Node, view: View, led: Led) -> Iterator[tuple[str, State]]:
        budget = state.budget
        leading = thaw(each, led, view.part)
        if budget.records and not leading.is_under_min_isr(MIN_ISR):
            number = self._budget.records - budget.records + 1
            longer = node._replace(log=(*node.log, (led.leader_epoch, number)))
            spent = state._replace(budget=budget._replace(records=budget.records - 1))
            yield f"n{each} appends record {number}", self._advance(spent, each, longer, leading)
        for laggard in leading.laggards(len(node.log), 0, 0) if budget.shrinks else ():
            proposing = thaw(each, led, view.part)
            proposal = proposing.shrink([laggard], node.epoch)
            spent = state._replace(budget=budget._replace(shrinks=budget.shrinks - 1))
            asked = self._ask(spent.with_node(each, node._replace(led=freeze(proposing))), each, node, proposal)
            yield f"n{each} proposes ISR {proposal.isr} without lagging n{laggard}", asked

    def _ask(self, state: State, each: int, node: Node, proposal: Proposal) -> State:
        return state._replace(asking=state.asking | {Asking(each, node.epoch, proposal)})

    def _advance(self, state: State, each: int, node: Node, leading: Leading) -> State:
        """Moves the leader's high watermark as `Partition._advance` does. All records below it count as committed."""
        committed = state.committed
        mark = node.high_watermark
        if not leading.is_under_min_isr(MIN_ISR):
            assert node.view is not None
            end = len(node.log)
            mark = max(mark, leading.high_watermark(end, end, 0, 0, broker_images(node.view.brokers)))
            below = node.log[:mark]
            if below[: len(committed)] != committed[: len(below)]:
                committed = (DIVERGED,)
            elif len(below) > len(committed):
                committed = below
        changed = node._replace(high_watermark=mark, led=freeze(leading))
        return state._replace(committed=committed).with_node(each, changed)

    # A follower.

    def _fetch(self, state: State, each: int, node: Node, view: View) -> Iterator[tuple[str, State]]:
        leader_id = view.part.leader
        leader = state.node(leader_id)
        led = leader.led
        if not leader.up or led is None or leader.view is None or led.leader_epoch != view.part.leader_epoch:
            return
        diverging = self._diverging(leader, led, node)
        if diverging is not None:
            epoch, end = diverging
            shorter = self._truncated(node, epoch, end, len(leader.log))
            if shorter != node:
                yield f"n{each} truncates its log to {len(shorter.log)}", state.with_node(each, shorter)
            return
        leading = thaw(leader_id, led, leader.view.part)
        progress = leading.followers[each]
        progress.broker_epoch = node.epoch
        progress.on_fetch(len(node.log), 0, len(leader.log), 0)
        progress.caught_up_ms = NEVER_MS
        brokers_known = broker_images(leader.view.brokers)
        asked = state
        text = f"n{each} fetches from n{leader_id} at offset {len(node.log)}"
        if leading.may_join(progress, leader.high_watermark, brokers_known):
            proposal = leading.expand(each, leader.epoch)
            asked = self._ask(state, leader_id, leader, proposal)
            text += f", which proposes ISR {proposal.isr}"
        served = self._advance(asked, leader_id, leader, leading)
        log = (*node.log, *leader.log[len(node.log) :])
        mark = max(node.high_watermark, min(served.node(leader_id).high_watermark, len(log)))
        taken = served.with_node(each, node._replace(log=log, high_watermark=mark))
        if taken != state:
            yield text, taken
        if served not in (taken, state):
            yield f"{text}; the answer is lost", served

    @staticmethod
    def _diverging(leader: Node, led: Led, node: Node) -> tuple[int, int] | None:
        """Returns the leader's answer to a follower whose log diverges, as `Fetching._diverged` does."""
        if not node.log:
            return None
        last = node.log[-1][0]
        cache, end = epochs_of(leader.log), len(leader.log)
        newest = newest_epoch_end(last, led.leader_epoch, cache.latest_epoch, end)
        epoch, epoch_end = newest if newest is not None else cache.end_offset_for(last, end)
        return (epoch, epoch_end) if epoch < last or epoch_end < len(node.log) else None

    @staticmethod
    def _truncated(node: Node, epoch: int, end: int, leader_end: int) -> Node:
        log_end = len(node.log)
        if epoch == -1 or end == -1:
            step = follower_side.reset(log_end, 0, leader_end)
            offset = step.offset
        else:
            own_epoch, own_end = epochs_of(node.log).end_offset_for(epoch, log_end)
            offset = follower_side.truncation(epoch, end, own_epoch, own_end, log_end, node.high_watermark).offset
        return node._replace(log=node.log[:offset], high_watermark=min(node.high_watermark, offset))

    # Metadata reaches a broker.

    def _learn(self, state: State, each: int, node: Node) -> State:
        view = state.view
        learned = node._replace(view=view)
        if view.part.leader != each:
            return self._pruned(state.with_node(each, learned._replace(led=None)))
        if node.led is not None and node.led.leader_epoch == view.part.leader_epoch:
            leading = thaw(each, node.led, view.part)
            leading.follow(view.part, 0)
        else:
            cache = epochs_of(node.log)
            start = cache.starts[-1] if cache.latest_epoch == view.part.leader_epoch else len(node.log)
            leading = Leading(each, view.part, start, 0)
        return self._pruned(self._advance(state, each, learned, leading))

    # Requests to the controller.

    def _deliver(self, state: State, asking: Asking) -> Iterator[tuple[str, State]]:
        proposal = asking.proposal
        wish = api_56.PartitionData(
            partition_index=0,
            leader_epoch=proposal.leader_epoch,
            new_isr_with_epochs=[api_56.BrokerState(broker_id=one, broker_epoch=its) for one, its in proposal.members],
            partition_epoch=proposal.partition_epoch,
        )
        request = api_56.AlterPartitionRequest(
            broker_id=asking.broker_id,
            broker_epoch=asking.broker_epoch,
            topics=[api_56.TopicData(topic_id=ID, partitions=[wish])],
        )
        try:
            decision = alter_partition.alter_partition(image_of(state.view), request, RULES)
        except KafkaError:
            return  # the leader sends the request again
        found = decision.reply.topics[0].partitions[0]
        code = ErrorCode(found.error_code)
        answer = Answer(asking.broker_id, proposal, code, *_granted(found, code))
        view = after(state.view, decision.records)
        changed = state._replace(view=view, answers=state.answers | {answer})
        yield f"controller answers {code.name} to ISR {proposal.isr} of n{asking.broker_id}", self._pruned(changed)

    def _hear(self, state: State, answer: Answer) -> State:
        node = state.node(answer.broker_id)
        heard = state._replace(answers=state.answers - {answer})
        if node.led is None or node.view is None or answer.code is not ErrorCode.NONE:
            return heard  # the leader waits for the image, or sends the same request again
        if not answer.proposal.counts_when_granted(answer.partition_epoch):
            return heard
        leading = thaw(answer.broker_id, node.led, node.view.part)
        if leading.accepted(answer.isr, answer.leader_epoch, answer.partition_epoch):
            heard = self._advance(heard, answer.broker_id, node, leading)
        return self._pruned(heard)

    # Registrations, fencing.

    @staticmethod
    def _start(state: State, each: int, node: Node) -> State:
        """Starts a new process.

        It uses the incarnation id of the previous process again if that process got no response to its registration.
        """
        used = [one.incarnation for one in state.nodes]
        incarnation = node.noted_incarnation or max(used) + 1
        started = node._replace(
            up=True, incarnation=incarnation, epoch=NO_EPOCH, noted_incarnation=incarnation, view=None, led=None
        )
        arriving = Arriving(each, incarnation, node.noted_epoch, NO_EPOCH)
        return state._replace(arriving=state.arriving | {arriving}).with_node(each, started)

    def _register(self, state: State, arriving: Arriving) -> tuple[str, State]:
        each = arriving.broker_id
        node = state.node(each)
        waits = node.up and node.incarnation == arriving.incarnation and node.epoch == NO_EPOCH
        rest = state._replace(arriving=state.arriving - {arriving})
        registration = brokers.Registration(
            each,
            _uuid(arriving.incarnation),
            {},
            [_uuid(1000 + each)],
            None,
            None,
            arriving.previous,
            ended_broker_epoch=arriving.ended,
        )
        image = image_of(state.view)
        ended = brokers.epoch_to_name(image, registration)
        if ended is not None:
            if waits:
                rest = rest._replace(arriving=rest.arriving | {arriving._replace(ended=ended)})
            return f"controller asks n{each} to name epoch {ended}", rest
        decision = brokers.register_broker(image, registration, RULES)
        changed = rest._replace(view=after(state.view, decision.records))
        if node.incarnation == arriving.incarnation:
            node = node._replace(lossy=False)
        if waits:
            node = node._replace(epoch=decision.reply, noted_epoch=decision.reply, noted_incarnation=0)
        text = f"controller registers n{each} as incarnation {arriving.incarnation} with epoch {decision.reply}"
        return f"{text}: {_shown(changed.view)}", self._pruned(changed.with_node(each, node))

    def _controller(self, state: State) -> Iterator[tuple[str, State]]:
        view, budget = state.view, state.budget
        for each, known in enumerate(view.brokers, 1):
            node = state.node(each)
            if known.fenced:
                caught_up = node.view is not None and node.view.brokers[each - 1].epoch == known.epoch
                if node.up and node.epoch == known.epoch and caught_up:
                    decision = broker_states.unfence_broker(image_of(view), each, known.epoch, RULES)
                    changed = state._replace(view=after(view, decision.records))
                    yield f"controller unfences n{each}: {_shown(changed.view)}", self._pruned(changed)
            elif budget.fences or not node.up or node.epoch != known.epoch:
                records = broker_states.fence_broker(image_of(view), each, RULES).records
                living = node.up and node.epoch == known.epoch
                left = budget._replace(fences=budget.fences - 1) if living else budget
                changed = state._replace(view=after(view, records), budget=left)
                yield f"controller fences n{each}: {_shown(changed.view)}", self._pruned(changed)

    def _pruned(self, state: State) -> State:
        """Drops messages without effect: requests with an old epoch, and responses to a proposal that has ended."""
        part = state.view.part
        asking = frozenset(
            one
            for one in state.asking
            if self._keep_late
            or (one.proposal.leader_epoch, one.proposal.partition_epoch) == (part.leader_epoch, part.partition_epoch)
        )
        answers = frozenset(
            one
            for one in state.answers
            if (led := state.node(one.broker_id).led) is not None and led.proposal == one.proposal
        )
        return state._replace(asking=asking, answers=answers)


#: Takes the place of the committed records once two leaders disagreed.
DIVERGED = (-1, -1)


def _granted(found: Any, code: ErrorCode) -> tuple[Any, ...]:
    return (tuple(found.isr), found.leader_epoch, found.partition_epoch) if code is ErrorCode.NONE else ()


def _down(node: Node) -> Node:
    return node._replace(up=False, epoch=NO_EPOCH, view=None, led=None)


def _shown(view: View) -> str:
    part = view.part
    eligible = f", eligible {part.elr}" if part.elr else ""
    return f"leader {part.leader} in epoch {part.leader_epoch}, ISR {part.isr}{eligible}"
