"""Compares the records that the replicas of a partition serve from one offset on, and names the replicas that differ.

A batch that does not match its own checksum proves that its replica is damaged. If the checksums are right and the
contents differ, the majority of the partition's replicas decides. This needs at least three replicas: with two
replicas, it is unknown which of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.guard.findings import NOBODY, Finding, Kind
from penstock.guard.samples import Batch, Sample, Status, batches_of

LEAST_REPLICAS = 3
NO_LIMIT = -1
#: Findings after which the replica of the accused node is refilled.
DAMAGE = (Kind.CONTENT, Kind.CHECKSUM)


@dataclass(frozen=True, slots=True)
class Rules:
    """Holds the observer's facts about the partition, such as its leader epoch. Samples are checked against them."""

    partition: str
    replicas: int
    """The number of the partition's replicas, including those without a sample."""
    leader_epoch: int
    latest_timestamp_ms: int = NO_LIMIT
    """Timestamps above this time are reported; NO_LIMIT reports none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    start: int
    end: int
    """The replicas were compared up to this offset; at least `start`."""
    findings: tuple[Finding, ...] = ()
    good: tuple[int, ...] = ()
    """The replicas that hold the content of the majority, or the only intact content, at the first difference."""
    incomparable: bool = False
    """True if the replicas differ because compaction removed records."""

    @property
    def damaged(self) -> frozenset[int]:
        """Returns the nodes whose replicas are damaged and must be copied again."""
        return frozenset(each.accused for each in self.findings if each.kind in DAMAGE and each.accused != NOBODY)


def compare(start: int, samples: Sequence[Sample], rules: Rules) -> Comparison:
    """Compares the samples of all replicas that answered, from offset `start` on, up to the first difference."""
    early = tuple(_answers(start, samples, rules))
    damaged = {each.node_id for each in samples if each.status is Status.DAMAGED}
    cut = _cut(samples)
    if damaged:
        return _beside_damage(start, damaged, cut, early, rules)
    if not cut:
        return Comparison(start, start, early)
    found = _walk(start, cut, rules)
    return Comparison(found.start, found.end, early + found.findings, found.good, found.incomparable)


def _cut(samples: Sequence[Sample]) -> dict[int, list[Batch]]:
    """Splits each sample that has records into batches. Equal samples, the usual case, are split only once."""
    cut: dict[int, list[Batch]] = {}
    known: list[tuple[bytes, int, list[Batch]]] = []
    for each in samples:
        if not each.has_records:
            continue
        data, mark = bytes(each.records), each.high_watermark
        found = next((batches for other, lowest, batches in known if mark >= lowest and data == other), None)
        if found is None:
            found = batches_of(data, mark)
            known.append((data, mark, found))
        cut[each.node_id] = found
    return cut


def _answers(start: int, samples: Sequence[Sample], rules: Rules) -> Iterator[Finding]:
    """Yields findings about replicas that served no records: because of damage, or because their log is too short."""
    for each in samples:
        if each.status is Status.DAMAGED:
            evidence = f"node {each.node_id} reports that its stored batch is damaged"
            yield Finding(Kind.CHECKSUM, each.node_id, rules.partition, start, evidence)
    having = [each for each in samples if each.has_records]
    if rules.replicas < LEAST_REPLICAS or 2 * len(having) <= rules.replicas:
        return
    for each in samples:
        if each.status is Status.LACKING:
            others = ", ".join(str(one.node_id) for one in having)
            mark = min(one.high_watermark for one in having)
            evidence = (
                f"node {each.node_id} is in sync, but its log ends below offset {mark}, which nodes {others} committed"
            )
            yield Finding(Kind.MISSING, each.node_id, rules.partition, start, evidence)


def _beside_damage(
    start: int, damaged: set[int], cut: Mapping[int, list[Batch]], early: tuple[Finding, ...], rules: Rules
) -> Comparison:
    """Compares only the first batch of the replicas that serve records.

    The replicas in `damaged` serve no records, because they found their own copies of this batch damaged.
    """
    first = {node: batches[:1] for node, batches in cut.items() if batches}
    found = _walk(start, first, rules) if first else Comparison(start, start)
    good = found.good or tuple(node for node, batches in first.items() if batches[0].intact)
    good = tuple(node for node in good if node not in damaged)
    return Comparison(start, found.end, early + found.findings, good, found.incomparable)


def _walk(start: int, cut: Mapping[int, list[Batch]], rules: Rules) -> Comparison:
    oddities: list[Finding] = []
    at, index = start, 0
    while all(index < len(batches) for batches in cut.values()):
        row = {node: batches[index] for node, batches in cut.items()}
        kinds = {(batch.base_offset, batch.digest) for batch in row.values()}
        if len(kinds) > 1 or not next(iter(row.values())).intact:
            return _difference(start, row, oddities, rules)
        batch = next(iter(row.values()))
        oddities += _oddities(batch, rules)
        at = max(at, batch.next_offset)
        index += 1
    return Comparison(start, at, tuple(oddities))


def _oddities(batch: Batch, rules: Rules) -> Iterator[Finding]:
    """Yields findings about a batch that all replicas agree on: a leader epoch or a timestamp that is too high."""
    if batch.leader_epoch > rules.leader_epoch:
        yield _epoch_finding(NOBODY, batch, rules)
    if 0 <= rules.latest_timestamp_ms < batch.max_timestamp:
        evidence = f"{batch} has timestamp {batch.max_timestamp}, later than {rules.latest_timestamp_ms}"
        yield Finding(Kind.TIMESTAMP, NOBODY, rules.partition, batch.base_offset, evidence)


def _epoch_finding(accused: int, batch: Batch, rules: Rules) -> Finding:
    evidence = f"{batch} has leader epoch {batch.leader_epoch}, but the controller's epoch is {rules.leader_epoch}"
    return Finding(Kind.EPOCH, accused, rules.partition, batch.base_offset, evidence)


def _difference(start: int, row: Mapping[int, Batch], oddities: list[Finding], rules: Rules) -> Comparison:
    """Returns the findings about the first batch that is damaged or differs between replicas."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for node, batch in row.items():
        if batch.intact:
            groups.setdefault((batch.base_offset, batch.digest), []).append(node)
    broken = [node for node, batch in row.items() if not batch.intact]
    offset = min(batch.base_offset for batch in row.values() if batch.intact) if groups else start
    evidence = "; ".join(f"node {node}: {row[node]}" for node in sorted(row))
    findings = [*oddities]
    findings += [Finding(Kind.CHECKSUM, node, rules.partition, offset, evidence) for node in broken]
    findings += [
        _epoch_finding(node, batch, rules)
        for node, batch in row.items()
        if batch.intact and batch.leader_epoch > rules.leader_epoch
    ]
    if not groups:
        return Comparison(start, start, tuple(findings))
    good = max(groups.values(), key=len)
    if len(groups) == 1:
        return Comparison(start, row[good[0]].next_offset, tuple(findings), tuple(good))
    if _may_be_compacted([row[nodes[0]] for nodes in groups.values()]):
        end = max(row[node].next_offset for nodes in groups.values() for node in nodes)
        findings.append(Finding(Kind.CONTENT, NOBODY, rules.partition, offset, f"records are missing: {evidence}"))
        return Comparison(start, end, tuple(findings), incomparable=True)
    decided = rules.replicas >= LEAST_REPLICAS and 2 * len(good) > rules.replicas
    if not decided:
        findings.append(Finding(Kind.CONTENT, NOBODY, rules.partition, offset, evidence))
        return Comparison(start, max(row[node].next_offset for node in row if row[node].intact), tuple(findings))
    for nodes in groups.values():
        if nodes is not good:
            findings += [Finding(Kind.CONTENT, node, rules.partition, offset, evidence) for node in nodes]
    return Comparison(start, row[good[0]].next_offset, tuple(findings), tuple(good))


def _may_be_compacted(batches: Sequence[Batch]) -> bool:
    """Returns True if compaction can explain the difference. Compaction removes records and whole batches, nothing
    else.

    Compaction keeps the offset of a batch, so it can't cause two batches with the same checksum and different offsets.
    """
    if len({batch.checksum for batch in batches}) < len(batches):
        return False
    return len({batch.base_offset for batch in batches}) > 1 or not all(batch.is_dense for batch in batches)
