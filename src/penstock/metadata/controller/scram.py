"""Decides AlterUserScramCredentials requests. All changes of a request are committed together; each user gets a
result."""

from __future__ import annotations

from typing import Any

from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Decision
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.protocol.persisted.metadata.remove_user_scram_credential_record import RemoveUserScramCredentialRecord
from penstock.protocol.persisted.metadata.user_scram_credential_record import UserScramCredentialRecord
from penstock.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism, credential_of

_TWICE = (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")
_MAX_BYTES = 1_024
Problem = tuple[ErrorCode, str]
Change = ScramCredentialDeletion | ScramCredentialUpsertion


def alter_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> Decision[AlterUserScramCredentialsResponse]:
    """Changes the credentials of each user. Refuses a user whose change is invalid or who is named twice."""
    if len(request.deletions) + len(request.upsertions) > MAX_RECORDS_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Too many credentials in one request: alter fewer at a time.")
    changes: dict[str, Any] = {}
    problems: dict[str, Problem] = {}
    asked: list[Change] = [*request.deletions, *request.upsertions]
    for change in asked:
        name = change.name
        if name in problems:
            continue
        problem = _TWICE if changes.pop(name, None) is not None else _problem(image, change)
        if problem is None:
            changes[name] = change
        else:
            problems[name] = problem
    results = [AlterUserScramCredentialsResult(user=name, error_message=None) for name in changes]
    results += [
        AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
        for name, (code, message) in problems.items()
    ]
    return Decision(
        [_record(change) for change in changes.values()], AlterUserScramCredentialsResponse(results=results)
    )


def _problem(image: MetadataImage, change: Change) -> Problem | None:
    if not change.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if change.mechanism not in ScramMechanism.__members__.values():
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, ScramCredentialDeletion):
        if (change.name, change.mechanism) not in image.scram_credentials:
            return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        return None
    if change.iterations < MIN_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if change.iterations > MAX_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    if not change.salt or not change.salted_password:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty"
    if max(len(change.name), len(change.salt), len(change.salted_password)) > _MAX_BYTES:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Name, salt and salted password have at most {_MAX_BYTES} bytes"
    return None


def _record(change: Change) -> Any:
    if isinstance(change, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    mechanism = ScramMechanism(change.mechanism)
    made = credential_of(mechanism, bytes(change.salt), bytes(change.salted_password), change.iterations)
    return credential_record(change.name, mechanism, made)


def credential_record(name: str, mechanism: ScramMechanism, made: ScramCredential) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )
