"""Checks guarantees that depend on topic configs, while these configs change.

With penstock.acks.fsync or flush.messages=1, an acknowledgement promises that the record is fsynced. The config must be
set from the sending of the record until the answer. A new config counts only after a delay, in which all nodes learn of
it. In a cluster the config must also stay set until the end of the run: after a power loss, the controller decides by
the config of that moment whether the machine may still have all acknowledged records.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.sim.checks.history import ConfigChange, FinalView, History, Outcome
from penstock.sim.plan.plan import Plan

#: Configs that promise fsync, each with the value that does.
FSYNC = {"penstock.acks.fsync": "true", "flush.messages": "1"}
#: Time within which all nodes know a config, or are fenced.
KNOWN_S = 15.0
KNOWN_BY_ITSELF_S = 0.5

Span = tuple[float, float]


def promised(plan: Plan, history: History, topic: str) -> list[Span]:
    """Returns the time spans in which an acknowledgement of the topic promised that the record was fsynced."""
    delay = KNOWN_BY_ITSELF_S if plan.layout.single_node else KNOWN_S
    spans: list[Span] = []
    for name, value in FSYNC.items():
        spans += _spans([each for each in history.configs if (each.topic, each.name) == (topic, name)], value, delay)
    return spans


def _spans(changes: list[ConfigChange], value: str, delay: float) -> Iterator[Span]:
    since: float | None = None
    for change in changes:
        if change.value != value:
            if since is not None:
                yield since, change.began
            since = None
        elif change.outcome is Outcome.DONE and since is None:
            since = change.ended + delay
    if since is not None:
        yield since, float("inf")


def promised_fsync_survives_power_loss(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each lost record whose acknowledgement promised that the record was fsynced."""
    spans = {topic: promised(plan, history, topic) for topic in {change.topic for change in history.configs}}
    judged = {topic.name for topic in plan.topics if not topic.shrinks}
    for write in history.writes:
        topic = write.partition[0]
        if topic not in judged or write.outcome is not Outcome.DONE or write.acks != -1 or write.offset < 0:
            continue
        if write.transaction is not None or write.partition in history.damaged:
            continue
        held = [
            end
            for begin, end in spans.get(topic, ())
            if begin <= write.began and write.ended <= end and (plan.layout.single_node or end == float("inf"))
        ]
        stored = view.records.get(write.partition, {}).get(write.offset)
        if held and (stored is None or stored.value != write.value):
            where = f"{topic}-{write.partition[1]} offset {write.offset}"
            yield f"{where} was acknowledged with fsync at {write.ended:.3f} s and is lost"


CONFIG_RULES = (("promised fsync survives power loss", promised_fsync_survives_power_loss),)
