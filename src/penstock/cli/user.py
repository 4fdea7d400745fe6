"""`penstock user` lists SCRAM users, sets their passwords and removes them.

A password is read from a file, from standard input or from the terminal, never from an argument: other users of the
machine can see arguments. This command computes the salted password, so the broker never gets the password itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, positive_int, verb
from penstock.security.scram import DEFAULT_ITERATIONS, MECHANISMS, ScramMechanism

COLUMNS = ["user", "mechanism", "iterations"]


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list SCRAM users and their mechanisms", run_list)
    connection(listing)

    setting = verb(verbs, "set", "set a user's password, for each mechanism", run_set)
    connection(setting)
    setting.add_argument("user", metavar="NAME")
    setting.add_argument("--password-file", metavar="FILE", help="file with the password; - is standard input")
    setting.add_argument("--iterations", type=positive_int, default=DEFAULT_ITERATIONS, metavar="N")
    _mechanism(setting)

    removing = verb(verbs, "remove", "remove a user's passwords", run_remove)
    connection(removing)
    removing.add_argument("user", metavar="NAME")
    _mechanism(removing)


def _mechanism(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mechanism", action="append", choices=sorted(MECHANISMS), metavar="MECHANISM", help="default: both of SCRAM"
    )


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        rows = broker.run(broker.access.users())
    output.rows(args.output, COLUMNS, rows)
    return Exit.OK


def run_set(args: argparse.Namespace) -> int:
    import secrets

    from penstock.cli.connect import connect

    password, mechanisms = _password(args.password_file), _mechanisms(args)
    with connect(args) as broker:
        change = broker.access.set_password(args.user, password, mechanisms, secrets.token_bytes, args.iterations)
        broker.run(change)
    return _changed(args, mechanisms)


def run_remove(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        try:
            removed = broker.run(broker.access.remove_user(args.user, _mechanisms(args)))
        except Failure as failure:
            if failure.code is not Exit.NOT_FOUND:
                raise
            raise Failure(f"{failure.message}: `penstock user list` shows the users", Exit.NOT_FOUND) from failure
    return _changed(args, removed)


def _changed(args: argparse.Namespace, mechanisms: Sequence[ScramMechanism]) -> int:
    rows = [{"user": args.user, "mechanism": mechanism.label} for mechanism in mechanisms]
    output.rows(args.output, ["user", "mechanism"], rows)
    return Exit.OK


def _mechanisms(args: argparse.Namespace) -> list[ScramMechanism]:
    return [MECHANISMS[name] for name in args.mechanism or MECHANISMS]


def _password(path: str | None) -> str:
    if path is None:
        import getpass

        if not sys.stdin.isatty():
            raise Failure("there is no terminal to ask for the password: give --password-file FILE or -", Exit.USAGE)
        password = getpass.getpass("password: ")
    else:
        try:
            password = (sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")).rstrip("\n")
        except OSError as problem:
            raise Failure(f"{path} can't be read: {problem.strerror or problem}", Exit.USAGE) from None
    if not password:
        raise Failure("the password is empty: give a password", Exit.USAGE)
    return password
