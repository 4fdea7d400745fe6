"""Tests the controller's decisions on SCRAM credentials without a node."""

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.scram import alter_scram_credentials
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.security.scram import MAX_ITERATIONS, MIN_ITERATIONS

SHA_256, SHA_512 = 1, 2
LONGEST = 1024


def upsertion(
    name: str = "ann",
    mechanism: int = SHA_256,
    iterations: int = MIN_ITERATIONS,
    salt: bytes = b"salt",
    password: bytes = b"salted",
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=password
    )


def deletion(name: str = "ann", mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def altered(
    image: MetadataImage, *changes: ScramCredentialUpsertion | ScramCredentialDeletion
) -> tuple[dict[str, ErrorCode], MetadataImage]:
    decision = alter_scram_credentials(
        image,
        AlterUserScramCredentialsRequest(
            deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
            upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
        ),
    )
    results = {each.user: ErrorCode(each.error_code) for each in decision.reply.results}
    assert len(results) == len(decision.reply.results)
    return results, apply(image, decision.records)


def test_scram_credentials_are_added_changed_and_deleted() -> None:
    codes, image = altered(MetadataImage(), upsertion("ann"), upsertion("bob", SHA_512))
    assert codes == {"ann": ErrorCode.NONE, "bob": ErrorCode.NONE}
    assert set(image.scram_credentials) == {("ann", SHA_256), ("bob", SHA_512)}
    codes, image = altered(image, upsertion("ann", salt=b"other"), deletion("bob", SHA_512))
    assert codes == {"ann": ErrorCode.NONE, "bob": ErrorCode.NONE}
    assert set(image.scram_credentials) == {("ann", SHA_256)}
    assert image.scram_credentials["ann", SHA_256].salt == b"other"


def test_request_that_names_a_scram_user_twice_is_refused_for_this_user() -> None:
    _, image = altered(MetadataImage(), upsertion("ann"))
    codes, changed = altered(image, deletion("ann"), upsertion("ann", SHA_512), upsertion("ann"), upsertion("bob"))
    assert codes == {"ann": ErrorCode.DUPLICATE_RESOURCE, "bob": ErrorCode.NONE}
    assert set(changed.scram_credentials) == {("ann", SHA_256), ("bob", SHA_256)}


UNACCEPTABLE = ErrorCode.UNACCEPTABLE_CREDENTIAL


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(name=""), UNACCEPTABLE),
        (upsertion(mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion(mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (deletion(), ErrorCode.RESOURCE_NOT_FOUND),
        (upsertion(iterations=MIN_ITERATIONS - 1), UNACCEPTABLE),
        (upsertion(iterations=MAX_ITERATIONS + 1), UNACCEPTABLE),
        (upsertion(salt=b""), UNACCEPTABLE),
        (upsertion(password=b""), UNACCEPTABLE),
        (upsertion(name="n" * (LONGEST + 1)), UNACCEPTABLE),
        (upsertion(salt=bytes(LONGEST + 1)), UNACCEPTABLE),
        (upsertion(password=bytes(LONGEST + 1)), UNACCEPTABLE),
    ],
)
def test_invalid_change_of_a_scram_credential_is_refused(
    change: ScramCredentialUpsertion | ScramCredentialDeletion, code: ErrorCode
) -> None:
    codes, image = altered(MetadataImage(), change, upsertion("bob"))
    assert codes == {change.name: code, "bob": ErrorCode.NONE}
    assert set(image.scram_credentials) == {("bob", SHA_256)}


@pytest.mark.parametrize(
    "change",
    [
        upsertion(iterations=MAX_ITERATIONS),
        upsertion(name="n" * LONGEST),
        upsertion(salt=bytes(LONGEST)),
        upsertion(password=bytes(LONGEST)),
    ],
)
def test_scram_credential_with_the_largest_allowed_values_is_accepted(change: ScramCredentialUpsertion) -> None:
    assert altered(MetadataImage(), change)[0] == {change.name: ErrorCode.NONE}


def test_request_that_changes_too_many_scram_credentials_is_refused() -> None:
    many = [deletion(f"u{number}") for number in range(MAX_RECORDS_PER_REQUEST)]
    codes, _ = altered(MetadataImage(), *many)
    assert set(codes.values()) == {ErrorCode.RESOURCE_NOT_FOUND}
    with pytest.raises(KafkaError) as refused:
        altered(MetadataImage(), *many, upsertion())
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
