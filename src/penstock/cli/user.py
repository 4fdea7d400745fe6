"""`penstock user` lists SCRAM users, sets their passwords and removes them.

A password is read from a file, from standard input or from the terminal, never from an argument: other users of the
machine can see arguments. This command computes the salted password, so the broker never gets the password itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, positive_int, verb
from penstock.security.scram import DEFAULT_ITERATIONS, MECHANISMS, SALT_BYTES, ScramMechanism, salted_password

if TYPE_CHECKING:
    from penstock.protocol.schema import Message

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
    from penstock.cli.connect import connect, failure
    from penstock.protocol.messages.api_50_describe_user_scram_credentials import DescribeUserScramCredentialsRequest

    with connect(args) as broker:
        answer = broker.ask(DescribeUserScramCredentialsRequest())
    if answer.error_code:
        raise failure("users", answer.error_code, answer.error_message)
    rows = [
        {"user": result.user, "mechanism": ScramMechanism(each.mechanism).label, "iterations": each.iterations}
        for result in answer.results
        for each in result.credential_infos
    ]
    output.rows(args.output, COLUMNS, rows)
    return Exit.OK


def run_set(args: argparse.Namespace) -> int:
    import secrets

    from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialUpsertion,
    )

    password = _password(args.password_file)
    requests = []
    for mechanism in _mechanisms(args):  # Kafka takes one change of a user per request
        salt = secrets.token_bytes(SALT_BYTES)
        change = ScramCredentialUpsertion(
            name=args.user,
            mechanism=mechanism,
            iterations=args.iterations,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, args.iterations),
        )
        requests.append(AlterUserScramCredentialsRequest(upsertions=[change]))
    return _alter(args, requests)


def run_remove(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.protocol.messages.api_50_describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
        UserName,
    )
    from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest,
        ScramCredentialDeletion,
    )

    with connect(args) as broker:
        known = broker.ask(DescribeUserScramCredentialsRequest(users=[UserName(name=args.user)]))
    had = {each.mechanism for result in known.results for each in result.credential_infos}
    wanted = [mechanism for mechanism in _mechanisms(args) if mechanism in had]
    if not wanted:
        raise Failure(
            f"user {args.user} has no password for this mechanism: `penstock user list` shows the users", Exit.NOT_FOUND
        )
    deletions = [
        AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name=args.user, mechanism=mechanism)])
        for mechanism in wanted
    ]
    return _alter(args, deletions)


def _alter(args: argparse.Namespace, requests: Sequence[Message]) -> int:
    from penstock.cli.connect import connect, failure

    with connect(args) as broker:
        for request in requests:
            answer = broker.ask(request)
            for result in answer.results:
                if result.error_code:
                    raise failure(f"user {result.user}", result.error_code, result.error_message)
    names = [mechanism.label for mechanism in _mechanisms(args)]
    output.rows(args.output, ["user", "mechanism"], [{"user": args.user, "mechanism": name} for name in names])
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
        raise Failure("the password is empty: give one", Exit.USAGE)
    return password
