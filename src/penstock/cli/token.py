"""`penstock token` creates, renews, expires and lists delegation tokens (KIP-48).

With a token, a job logs in as the token's owner for a limited time, without the owner's password. The job uses SCRAM:
the token's id is the user name, the token's HMAC is the password, and the JAAS line has `tokenauth="true"`.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import sys
from pathlib import Path
from typing import Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, positive_int, verb

COLUMNS = ["token_id", "owner", "requester", "renewers", "issued_ms", "expires_ms", "max_ms"]
DEFAULT_PERIOD = -1


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    creating = verb(verbs, "create", "create a token and print its id and HMAC", run_create)
    connection(creating)
    creating.add_argument("--owner", metavar="User:NAME", help="default: the user who logs in")
    creating.add_argument("--renewer", action="append", default=[], metavar="User:NAME", help="may be repeated")
    creating.add_argument("--max-lifetime-ms", type=positive_int, default=DEFAULT_PERIOD, metavar="MS")

    for name, summary in (("renew", "prolong a token"), ("expire", "end a token, at once or after a period")):
        changing = verb(verbs, name, summary, run_renew if name == "renew" else run_expire)
        connection(changing)
        changing.add_argument("--hmac-file", required=True, metavar="FILE", help="file with the HMAC; - is stdin")
        changing.add_argument("--period-ms", type=positive_int, default=DEFAULT_PERIOD, metavar="MS")

    listing = verb(verbs, "list", "list tokens, without their HMACs", run_list)
    connection(listing)
    listing.add_argument("--owner", action="append", metavar="User:NAME", help="may be repeated (default: all)")


def run_create(args: argparse.Namespace) -> int:
    from penstock.protocol.messages.api_38_create_delegation_token import (
        CreatableRenewers,
        CreateDelegationTokenRequest,
    )

    kind, name = _principal(args.owner) if args.owner else (None, None)
    renewers = [
        CreatableRenewers(principal_type=one, principal_name=other) for one, other in map(_principal, args.renewer)
    ]
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind, owner_principal_name=name, renewers=renewers, max_lifetime_ms=args.max_lifetime_ms
    )
    answer = _ask(args, request)
    made = {
        "token_id": answer.token_id,
        "hmac": base64.b64encode(answer.hmac).decode(),
        "owner": f"{answer.principal_type}:{answer.principal_name}",
        "expires_ms": answer.expiry_timestamp_ms,
        "max_ms": answer.max_timestamp_ms,
    }
    output.record(args.output, made)
    return Exit.OK


def run_renew(args: argparse.Namespace) -> int:
    from penstock.protocol.messages.api_39_renew_delegation_token import RenewDelegationTokenRequest

    answer = _ask(args, RenewDelegationTokenRequest(hmac=_hmac(args.hmac_file), renew_period_ms=args.period_ms))
    output.record(args.output, {"expires_ms": answer.expiry_timestamp_ms})
    return Exit.OK


def run_expire(args: argparse.Namespace) -> int:
    from penstock.protocol.messages.api_40_expire_delegation_token import ExpireDelegationTokenRequest

    answer = _ask(args, ExpireDelegationTokenRequest(hmac=_hmac(args.hmac_file), expiry_time_period_ms=args.period_ms))
    output.record(args.output, {"expires_ms": answer.expiry_timestamp_ms})
    return Exit.OK


def run_list(args: argparse.Namespace) -> int:
    from penstock.protocol.messages.api_41_describe_delegation_token import (
        DescribeDelegationTokenOwner,
        DescribeDelegationTokenRequest,
    )

    owners = None
    if args.owner:
        found = map(_principal, args.owner)
        owners = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in found]
    answer = _ask(args, DescribeDelegationTokenRequest(owners=owners))
    rows = [
        {
            "token_id": token.token_id,
            "owner": f"{token.principal_type}:{token.principal_name}",
            "requester": f"{token.token_requester_principal_type}:{token.token_requester_principal_name}",
            "renewers": ",".join(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
            "issued_ms": token.issue_timestamp,
            "expires_ms": token.expiry_timestamp,
            "max_ms": token.max_timestamp,
        }
        for token in answer.tokens
    ]
    output.rows(args.output, COLUMNS, rows)
    return Exit.OK


def _ask(args: argparse.Namespace, request: Any) -> Any:
    from penstock.cli.connect import connect, failure

    with connect(args) as broker:
        answer = broker.ask(request)
    if answer.error_code:
        raise failure("the delegation token", answer.error_code, None)
    return answer


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise Failure(f"{text!r} is not a principal: write User:NAME", Exit.USAGE)
    return kind, name


def _hmac(path: str) -> bytes:
    """Reads an HMAC in base64 from a file. Other users of the machine could see an HMAC in an argument."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return base64.b64decode(text.strip(), validate=True)
    except OSError as problem:
        raise Failure(f"{path} can't be read: {problem.strerror or problem}", Exit.USAGE) from None
    except (binascii.Error, ValueError):
        raise Failure(
            f"{path} has no HMAC in base64: use the HMAC that `penstock token create` printed", Exit.USAGE
        ) from None
