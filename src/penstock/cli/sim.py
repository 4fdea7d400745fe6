"""`penstock sim` runs a cluster in virtual time. A seed determines a whole run, so the same seed repeats the run.

For one seed, prints the events and the verdict of the run. For a range of seeds, runs them in several processes and
prints a summary. Shrinks each failing run, and prints the command that repeats the shrunk run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.cli import output, sim_mutants
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import finish, positive_float, positive_int

if TYPE_CHECKING:
    from penstock.sim.plan.plan import Plan
    from penstock.sim.plan.points import PointFault
    from penstock.sim.run.simulation import Verdict

PROFILES = (
    *("calm", "network", "crash", "power", "disk", "elections", "late", "hostile", "points"),
    *("compaction", "expiry", "recreation", "configs", "share", "moves", "unclean", "groups", "wrap", "reassign"),
    "directories",
    "guard",
    "liars",
)
DEFAULT_SECONDS = 60.0
#: Prefix of the counts of what no promise covers.
EXCUSED = "excused "
MOST_NODES = 7
MOST_PORT = 65_535


def configure(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, metavar="N", help="run this seed and print its events")
    which.add_argument("--seeds", type=_range, metavar="A..B", help="run these seeds and print a summary")
    parser.add_argument(
        "--profile", choices=PROFILES, default="hostile", help="which faults may come (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=positive_int, default=1, metavar="K", help="machines (default: %(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=positive_float, metavar="H", help="virtual hours under load and faults")
    length.add_argument(
        "--seconds", type=positive_float, metavar="S", help=f"the same in seconds (default: {DEFAULT_SECONDS:g})"
    )
    parser.add_argument(
        "--jobs", type=positive_int, default=1, metavar="J", help="processes for --seeds (default: %(default)s)"
    )
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--faults", type=_indexes, metavar="I,J", help="only these faults of the seed ('none': none)")
    parser.add_argument("--actors", type=_indexes, metavar="I,J", help="only these actors of the seed")
    parser.add_argument(
        "--at",
        type=_point_fault,
        action="append",
        metavar="POINT#N:FAULT",
        help="a fault at the n-th point of a kind, such as 'AlterPartition answer#3:drop' ('none': none)",
    )
    parser.add_argument(
        "--points",
        action="store_true",
        help="run each seed again with faults at chosen points (profile points: always)",
    )
    parser.add_argument(
        "--kind", action="append", metavar="TEXT", help="with --points: only points whose kind has this text, e.g. Vote"
    )
    parser.add_argument(
        "--coverage", metavar="FILE", help="with --points: read and write which faults have happened at which points"
    )
    parser.add_argument(
        "--bridge",
        type=_port,
        metavar="PORT",
        help="with --seed: serve real clients on 127.0.0.1, from this port on (0: free ports), until Ctrl-C",
    )
    parser.add_argument(
        "--other-version",
        default="",
        metavar="DIR",
        help="start all machines with the code in this directory, and upgrade them to this version one by one",
    )
    parser.add_argument("--no-shrink", action="store_true", help="don't search for a smaller run with the same failure")
    parser.add_argument("--plant", metavar="BUG", help="run with this planted bug; 'list' names all")
    parser.add_argument("--report", metavar="FILE", help="write the run as an HTML page (with --seed)")
    sim_mutants.configure(parser)
    finish(parser, run)


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    try:
        found = range(int(first), int(last) + 1) if dots else range(int(text), int(text) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 0..99") from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty range: the end must not be below the start")
    return found


def _indexes(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",")) if text != "none" else frozenset()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,2") from None


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {MOST_PORT}")
    return int(text)


def _point_fault(text: str) -> PointFault | None:
    from penstock.sim.plan.points import parse_point_fault

    try:
        return parse_point_fault(text) if text != "none" else None
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    if args.nodes > MOST_NODES:
        raise Failure(f"--nodes must be from 1 to {MOST_NODES}", Exit.USAGE)
    if args.mutants:
        return sim_mutants.run(args)
    if args.plant == "list":
        return _list_plants(args)
    if args.seed is None and args.seeds is None:
        raise Failure("give --seed N for one run, or --seeds A..B for many", Exit.USAGE)
    put_in(args.mutant)
    if args.bridge is not None:
        from penstock.cli.sim_bridge import serve_bridge

        if args.seed is None:
            raise Failure("--bridge needs --seed N: the seed determines the cluster and its faults", Exit.USAGE)
        return serve_bridge(plan_for(args, args.seed), args.bridge)
    if (args.points or args.profile == "points") and args.at is None:
        from penstock.cli.sim_points import run_points

        return run_points(args)
    if args.coverage:
        raise Failure("--coverage chooses the points itself: add --points and leave --at out", Exit.USAGE)
    return _run_one(args) if args.seed is not None else _run_many(args)


def put_in(mutant: str | None) -> None:
    """Applies a generated bug (a mutant) to this process, unless the process has it already."""
    from penstock.sim.mutants.hook import install, installed

    if mutant is None or installed() == mutant:
        return
    try:
        install(mutant)
    except KeyError:
        raise Failure(f"there is no mutant {mutant!r}: the results file of --mutants has the ids", Exit.USAGE) from None


def _list_plants(args: argparse.Namespace) -> int:
    """Prints the list of planted bugs, each with a simulator run that finds it."""
    from penstock.sim.faults.planted import FOUND_BY, PLANTS

    columns = ("name", "nodes", "profile", "seed", "seconds", "at", "about")
    rows = [
        {
            "name": name,
            "nodes": bug.nodes,
            "profile": bug.profile,
            "seed": FOUND_BY[name][0],
            "seconds": FOUND_BY[name][1],
            "at": bug.at,
            "about": bug.about,
        }
        for name, bug in PLANTS.items()
    ]
    output.rows(args.output, columns, rows)
    return Exit.OK


def plan_for(args: argparse.Namespace, seed: int) -> Plan:
    from penstock.sim.plan.draw import draw_plan

    seconds = args.hours * 3600 if args.hours else args.seconds or DEFAULT_SECONDS
    whole = draw_plan(seed, args.profile, nodes=args.nodes, duration_s=seconds)
    points = tuple(each for each in args.at or () if each is not None)
    return replace(whole.only(args.faults, args.actors), points=points, other_version=args.other_version)


def execute(plan: Plan, plant: str | None, *, trace: bool = False, record_points: bool = False) -> Verdict:
    from penstock.sim.engine.node_code import VersionError, other_version
    from penstock.sim.run.simulation import run_plan

    try:
        if plan.other_version:
            other_version(plan.other_version)
    except VersionError as error:
        raise Failure(str(error), Exit.USAGE) from None
    if plant is None:
        return run_plan(plan, keep_trace=trace, record_points=record_points)
    from penstock.sim.faults.planted import PLANTS

    if plant not in PLANTS:
        raise Failure(f"there is no planted bug {plant!r}: `--plant list` lists all", Exit.USAGE)
    with PLANTS[plant].planted():
        return run_plan(plan, keep_trace=trace, record_points=record_points)


# One seed.


def _run_one(args: argparse.Namespace) -> int:
    plan = plan_for(args, args.seed)
    began = time.process_time()
    verdict = execute(plan, args.plant, trace=args.trace)
    seconds = time.process_time() - began
    if args.report:
        from penstock.sim.run.report import write_report

        write_report(verdict, args.report)
    if args.output == "json":
        print(json.dumps(_summary(verdict, seconds), indent=2))
    else:
        tell(verdict, seconds)
    if verdict.ok:
        return Exit.OK
    if not args.no_shrink:
        show_smaller(args, verdict)
    return Exit.FAILED


def _summary(verdict: Verdict, seconds: float) -> dict[str, Any]:
    return {
        "seed": verdict.plan.seed,
        "profile": verdict.plan.profile,
        "ok": verdict.ok,
        "violations": [str(violation) for violation in verdict.violations],
        "virtual_seconds": round(verdict.virtual_s, 3),
        "seconds": round(seconds, 3),
        "trace": verdict.digest,
        **{name.replace(" ", "_"): count for name, count in verdict.counts.items()},
    }


def tell(verdict: Verdict, seconds: float) -> None:
    plan = verdict.plan
    actors = ", ".join(f"{actor.kind[:5]}{actor.index}" for actor in plan.actors)
    fsync = "  fsync everywhere" if plan.fsync_everywhere else ""
    print(f"seed {plan.seed}  profile {plan.profile}  {plan.duration_s:g} s{fsync}{_cluster(plan)}")
    topics = (f"{topic.name}×{topic.partitions}{' fsync' if topic.fsync else ''}" for topic in plan.topics)
    print(f"topics  {', '.join(topics)}")
    print(f"actors  {actors}")
    for line in verdict.trace or verdict.story:
        print(f"  {line}")
    excused = {name: count for name, count in verdict.counts.items() if name.startswith(EXCUSED)}
    print("  ".join(f"{name} {count:,}" for name, count in verdict.counts.items() if name not in excused))
    speed = verdict.virtual_s / max(seconds, 1e-9)
    print(
        f"{verdict.virtual_s:.1f} s of virtual time in {seconds:.1f} s of one core: {speed:,.0f}× real time, "
        f"trace {verdict.digest}"
    )
    for violation in verdict.violations:
        print(f"BROKEN  {violation}")
    print(
        "verdict: "
        + ("all promises kept" if verdict.ok else f"{output.counted(len(verdict.violations), 'promise')} broken")
        + "; excused: "
        + ", ".join(f"{count:,} {name.removeprefix(EXCUSED)}" for name, count in excused.items())
    )


def _cluster(plan: Plan) -> str:
    layout = plan.layout
    if layout.single_node:
        return ""
    if layout.brokers == layout.controllers:
        nodes = f"  {plan.nodes} nodes"
    else:
        nodes = f"  brokers {_ids(layout.brokers)}  controllers {_ids(layout.controllers)}"
    return f"{nodes}  {layout.replication_factor} replicas, {layout.min_insync} in sync at least"


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(f"n{each}" for each in ids)


def show_smaller(args: argparse.Namespace, verdict: Verdict) -> None:
    from penstock.sim.run.shrink import command, shrink

    output.note("searching for a smaller run with the same failure …")
    small = shrink(verdict, run=lambda plan: execute(plan, args.plant))
    print(f"again:   {command(small.plan)}" + (f" --plant {args.plant}" if args.plant else ""))
    for violation in small.violations[:3]:
        print(f"         {str(violation).splitlines()[0]}")


# Many seeds.


@dataclass(frozen=True, slots=True)
class _Job:
    seed: int
    args: argparse.Namespace


@dataclass(frozen=True, slots=True)
class _Done:
    seed: int
    violations: list[str]
    virtual_s: float
    seconds: float
    again: str = ""


def _do(job: _Job) -> _Done:
    args = job.args
    put_in(args.mutant)
    plan = plan_for(args, job.seed)
    began = time.process_time()
    verdict = execute(plan, args.plant)
    seconds = time.process_time() - began
    again = ""
    if not verdict.ok:
        from penstock.sim.run.shrink import command, shrink

        small = verdict if args.no_shrink else shrink(verdict, run=lambda plan: execute(plan, args.plant))
        again = command(small.plan) + (f" --plant {args.plant}" if args.plant else "")
    return _Done(job.seed, [str(each) for each in verdict.violations], verdict.virtual_s, seconds, again)


def _run_many(args: argparse.Namespace) -> int:
    jobs = [_Job(seed, picklable(args)) for seed in args.seeds]
    began = time.perf_counter()
    done: list[_Done] = []
    with output.Progress("simulated", total=len(jobs), unit="seeds") as progress:
        for each in _outcomes(jobs, args.jobs):
            done.append(each)
            progress.add()
            if each.violations:
                print(f"\rseed {each.seed}: {each.violations[0].splitlines()[0]}\n  again: {each.again}", flush=True)
    elapsed = time.perf_counter() - began
    failed = [each for each in done if each.violations]
    virtual = sum(each.virtual_s for each in done)
    fields = {
        "seeds": len(done),
        "failed": len(failed),
        "virtual_hours": round(virtual / 3600, 2),
        "seconds": round(elapsed, 1),
        "times_real_time": round(virtual / max(elapsed, 1e-9)),
        "times_real_time_per_core": round(virtual / max(sum(each.seconds for each in done), 1e-9)),
        "failed_seeds": sorted(each.seed for each in failed),
    }
    output.record(args.output, fields)
    return Exit.FAILED if failed else Exit.OK


def picklable(args: argparse.Namespace) -> argparse.Namespace:
    kept = {name: value for name, value in vars(args).items() if name not in ("run", "parser")}
    return argparse.Namespace(**kept)


def prepare_worker(mutant: str | None) -> None:
    """Prepares a worker process for many runs. With `mutant`, also applies this generated bug to the process."""
    put_in(mutant)
    from penstock.sim.run.many_runs import prepare  # loads the node's code

    prepare()


def _outcomes(jobs: list[_Job], processes: int) -> Any:
    if processes == 1:
        yield from map(_do, jobs)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    spawn, mutant = get_context("spawn"), jobs[0].args.mutant
    with ProcessPoolExecutor(processes, spawn, initializer=prepare_worker, initargs=(mutant,)) as pool:
        try:
            for future in as_completed([pool.submit(_do, job) for job in jobs]):
                yield future.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            sys.stderr.write("\n")
            raise
