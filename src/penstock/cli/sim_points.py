"""`penstock sim --points` runs each seed once to record its points, then again with faults at chosen points.

A point is a place in a run at which a fault can be injected, such as a write or a message. A combination is a kind of
point and a kind of fault; the least tried combinations are chosen first. `--coverage FILE` keeps the counts of the
combinations from one call to the next.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.sim import execute, picklable, plan_for, prepare_worker, put_in, show_smaller, tell

if TYPE_CHECKING:
    from penstock.sim.plan.coverage import Coverage
    from penstock.sim.plan.plan import Plan
    from penstock.sim.plan.points import Cell
    from penstock.sim.run.simulation import Verdict

#: Kinds of points with uncovered faults that the summary names.
NAMED = 20


def run_points(args: argparse.Namespace) -> int:
    from penstock.sim.plan.coverage import Coverage, load_coverage

    try:
        coverage = load_coverage(Path(args.coverage)) if args.coverage else Coverage()
    except ValueError as error:
        raise Failure(str(error), Exit.USAGE) from None
    return _run_one(args, coverage) if args.seed is not None else _run_many(args, coverage)


def _save(args: argparse.Namespace, coverage: Coverage) -> None:
    """Writes the coverage file after each seed, so that an interrupted command keeps the coverage of the finished
    seeds."""
    if args.coverage:
        coverage.save(Path(args.coverage))


def _verdicts(args: argparse.Namespace, seed: int, coverage: Coverage) -> Iterator[Verdict]:
    from penstock.sim.run.point_runs import point_runs

    def run(plan: Plan, *, record_points: bool = False) -> Verdict:
        return execute(plan, args.plant, record_points=record_points)

    return point_runs(plan_for(args, seed), coverage, run=run, kinds=tuple(args.kind or ()))


# One seed.


def _run_one(args: argparse.Namespace, coverage: Coverage) -> int:
    """Runs one seed with faults. Prints the faults of each run, and the events of the first run that fails."""
    began = time.process_time()
    for verdict in _verdicts(args, args.seed, coverage):
        _save(args, coverage)
        seconds = time.process_time() - began
        points = ", ".join(map(str, verdict.plan.points)) or f"{len(verdict.points.passed):,} points passed"
        if verdict.ok:
            print(f"kept    {points}", flush=True)
            began = time.process_time()
            continue
        tell(verdict, seconds)
        print(f"at      {points}")
        if not args.no_shrink:
            show_smaller(args, verdict)
        return Exit.FAILED
    _print_coverage(args, coverage)
    return Exit.OK


# Many seeds.


@dataclass(frozen=True, slots=True)
class _Job:
    seed: int
    args: argparse.Namespace
    covered: dict[Cell, int]
    """The coverage (faults at points so far) at the time at which the job was handed out."""


@dataclass(slots=True)
class _Done:
    seed: int
    runs: int = 0
    virtual_s: float = 0.0
    failed: list[tuple[str, str]] = field(default_factory=list)
    """The first violation of each failing run, and the command that repeats the run."""
    covered: dict[Cell, int] = field(default_factory=dict)
    """The faults at points that this job adds to the coverage."""


def _do(job: _Job) -> _Done:
    from penstock.sim.plan.coverage import Coverage
    from penstock.sim.run.shrink import command, shrink

    args = job.args
    put_in(args.mutant)
    coverage = Coverage(job.covered)
    done = _Done(job.seed)
    for verdict in _verdicts(args, job.seed, coverage):
        done.runs += 1
        done.virtual_s += verdict.virtual_s
        if not verdict.ok:
            small = verdict if args.no_shrink else shrink(verdict, run=lambda plan: execute(plan, args.plant))
            again = command(small.plan) + (f" --plant {args.plant}" if args.plant else "")
            done.failed.append((str(verdict.violations[0]).splitlines()[0], again))
    done.covered = {cell: count - job.covered.get(cell, 0) for cell, count in coverage.counts.items()}
    return done


def _run_many(args: argparse.Namespace, coverage: Coverage) -> int:
    began = time.perf_counter()
    done: list[_Done] = []
    with output.Progress("simulated", total=len(args.seeds), unit="seeds") as progress:
        for each in _outcomes(args, coverage):
            done.append(each)
            coverage.merge(each.covered)
            _save(args, coverage)
            progress.add()
            for what, again in each.failed:
                print(f"\rseed {each.seed}: {what}\n  again: {again}", flush=True)
    elapsed = time.perf_counter() - began
    virtual = sum(each.virtual_s for each in done)
    failed = sorted(each.seed for each in done if each.failed)
    fields = {
        "seeds": len(done),
        "runs": sum(each.runs for each in done),
        "failed": len(failed),
        "virtual_hours": round(virtual / 3600, 2),
        "seconds": round(elapsed, 1),
        "times_real_time": round(virtual / max(elapsed, 1e-9)),
        "cells": len(coverage.counts),
        "cells_covered": coverage.covered,
        "failed_seeds": failed,
    }
    output.record(args.output, fields)
    _print_coverage(args, coverage)
    return Exit.FAILED if failed else Exit.OK


def _outcomes(args: argparse.Namespace, coverage: Coverage) -> Iterator[_Done]:
    """Runs the seeds and yields the outcome of each. A seed starts with the coverage of all earlier finished seeds."""
    seeds = iter(args.seeds)
    sent = picklable(args)
    if args.jobs == 1:
        for seed in seeds:
            yield _do(_Job(seed, sent, dict(coverage.counts)))
        return
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from multiprocessing import get_context

    spawn, mutant = get_context("spawn"), args.mutant
    with ProcessPoolExecutor(args.jobs, spawn, initializer=prepare_worker, initargs=(mutant,)) as pool:
        running: set[Future[_Done]] = set()
        try:
            while True:
                while len(running) < args.jobs and (seed := next(seeds, None)) is not None:
                    running.add(pool.submit(_do, _Job(seed, sent, dict(coverage.counts))))
                if not running:
                    return
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            sys.stderr.write("\n")
            raise


def _print_coverage(args: argparse.Namespace, coverage: Coverage) -> None:
    if args.output == "json":
        return
    missing: dict[str, list[str]] = {}
    for cell in coverage.uncovered():
        missing.setdefault(f"{cell.kind} ({cell.role})", []).append(cell.fault)
    print(f"{coverage.covered:,} of {len(coverage.counts):,} cells (kind of point × fault × role) are covered")
    for where, faults in list(missing.items())[:NAMED]:
        print(f"  not covered: {where}: {', '.join(faults)}")
    if len(missing) > NAMED:
        rest = f"{args.coverage} has count 0 for them" if args.coverage else "--coverage FILE writes all of them"
        print(f"  and {len(missing) - NAMED:,} more: {rest}")
