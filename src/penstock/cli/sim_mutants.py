"""`penstock sim --mutants` measures how many generated bugs the unit tests and the simulator detect.

The bugs are divided into two halves. An undetected bug of the development half is listed with its code change.
Undetected bugs of the held-out half are only counted, because a bug measures nothing once the tests were written to
detect it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import positive_float, positive_int

if TYPE_CHECKING:
    from penstock.sim.mutants.catalogue import Mutant
    from penstock.sim.mutants.results import Result

HALVES = ("dev", "held-out")
PACKAGES = (
    "raft",
    "replication",
    "log",
    "transactions",
    "groups",
    "controller",
    "replicas",
    "controlplane",
    "coordinators",
)
WAYS = {"unit": ("unit",), "sim": ("sim",), "both": ("unit", "sim")}
DEFAULT_CPU_S = 600.0
MOST_UNREACHED = 40


def configure(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mutants")
    group.add_argument("--mutants", action="store_true", help="measure how many generated bugs are detected")
    group.add_argument(
        "--reach",
        action="store_true",
        help="with --mutants: only count the mutants in functions that the simulator runs",
    )
    group.add_argument("--mutant", metavar="ID", help="run seeds with this generated bug")
    group.add_argument("--half", choices=HALVES, default="dev", help="which half of the mutants (default: %(default)s)")
    group.add_argument(
        "--sample", type=positive_int, metavar="N", help="draw N mutants by --seed (default: all of the half)"
    )
    group.add_argument("--package", choices=PACKAGES, action="append", help="only mutants of this package; repeatable")
    group.add_argument(
        "--only", metavar="TEXT", action="append", help="only mutants whose id contains this text; repeatable"
    )
    group.add_argument(
        "--cpu-seconds",
        type=positive_float,
        default=DEFAULT_CPU_S,
        metavar="S",
        help="CPU time of the simulator for one mutant (default: %(default)g)",
    )
    group.add_argument("--by", choices=WAYS, default="both", help="which tests try to kill (default: %(default)s)")
    group.add_argument(
        "--results", metavar="FILE", default="mutants.jsonl", help="results so far, continued (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.sim.mutants.catalogue import Half, all_mutants, naming, sample
    from penstock.sim.mutants.hook import ROOT
    from penstock.sim.mutants.results import ResultFile
    from penstock.sim.mutants.runner import Runner, has_tests

    if not has_tests():
        raise Failure("mutants need the unit tests: run the command in a checkout of the repository", Exit.USAGE)
    half = [mutant for mutant in all_mutants(ROOT, args.package or ()) if mutant.half is Half(args.half)]
    half = naming(half, args.only or ())
    if args.only and not half:
        texts = " or ".join(args.only)
        raise Failure(f"no mutant of this half has {texts} in its id: give a file, a function or an id", Exit.USAGE)
    if args.reach:
        return _reach(args, half)
    drawn = sample(half, args.sample, args.seed or 0)
    ways = WAYS[args.by]
    runner = Runner(args.cpu_seconds, 1, ResultFile(Path(args.results)))
    results: list[Result] = []
    try:
        with output.Progress("tried", total=len(drawn) * len(ways), unit="mutants") as progress:
            for result in runner.run_all(drawn, ways, args.jobs):
                results.append(result)
                progress.add()
    except KeyboardInterrupt:
        output.note(f"\ninterrupted; the same command continues from {args.results}")
    _summarize(args, len(half), drawn, results, ways)
    for each in sorted(runner.failing):
        output.note(f"left out, because it fails without a mutant: {each}")
    return Exit.OK


def _reach(args: argparse.Namespace, mutants: Sequence[Mutant]) -> int:
    from penstock.sim.mutants.runner import reached_by_sim
    from penstock.sim.mutants.summary import reach_rows, unreached
    from penstock.sim.mutants.worker import SimTask

    reached = reached_by_sim(SimTask(args.cpu_seconds, 1)).keys()
    rows = reach_rows(mutants, reached)
    output.rows(args.output, list(rows[0]), rows)
    if args.half == "dev" and args.output != "json":
        for name, count in unreached(mutants, reached)[:MOST_UNREACHED]:
            print(f"  never runs: {name} ({output.counted(count, 'mutant')})")
    return Exit.OK


def _summarize(
    args: argparse.Namespace, of: int, drawn: Sequence[Mutant], results: Sequence[Result], ways: Sequence[str]
) -> None:
    from penstock.sim.mutants.summary import count, killed_by_any, survivors

    counts = [count(way, results).row for way in ways]
    killed, tried = killed_by_any(results, ways)
    alive = survivors(results, ways)
    fields = {"half": args.half, "mutants": of, "drawn": len(drawn), "tried": tried, "killed": killed}
    listed = [
        {"diff": result.diff, "id": result.id, "reached": result.reached}
        for result in sorted(alive, key=lambda result: result.id)
    ]
    if args.output == "json":
        shown = listed if args.half == "dev" else []
        print(output.json_text({**fields, "by": counts, "survived": len(alive), "survivors": shown}, indent=2))
        return
    output.rows(args.output, list(counts[0]), counts)
    print(f"{killed} of {tried} mutants killed by {' or '.join(ways)}; {len(alive)} survived every test tried")
    if args.half == "dev":
        for each in listed:
            print(output.printable(f"  {each['diff']}\n    {each['id']}"))
