"""`penstock pipeline` runs data pipelines on Spark."""

from __future__ import annotations

import argparse

from penstock.cli import output, pipeline_demo, pipeline_jobs, pipeline_pack, pipeline_projects
from penstock.cli.exit import Exit
from penstock.cli.options import verb


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    doctor = verb(verbs, "doctor", "check whether this machine can run pipelines", run_doctor)
    doctor.add_argument("--bundled-java", action="store_true", help="ignore the system's Java")
    pipeline_jobs.configure(verbs)
    pipeline_projects.configure(verbs)
    pipeline_pack.configure(verbs)
    pipeline_demo.configure(verbs)


def run_doctor(args: argparse.Namespace) -> int:
    from penstock.spark.doctor import examine

    findings = examine(bundled_java=args.bundled_java)
    rows = [
        {"what": each.what, "state": each.state, "found": each.found, "advice": each.advice or None}
        for each in findings
    ]
    output.rows(args.output, ("what", "state", "found", "advice"), rows)
    problems = [each for each in findings if not each.good]
    if problems:
        names = ", ".join(each.what for each in problems)
        output.note(f"penstock: pipelines can't run here yet: {names}")
        return Exit.FAILED
    return Exit.OK
