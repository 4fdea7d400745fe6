"""Tests the SCRAM users of `storage format --add-scram`, in Kafka's syntax."""

from __future__ import annotations

import base64

import pytest

from penstock.security.scram import ScramMechanism, credential_of, salted_password
from penstock.security.scram_arguments import parse_scram_user

SALT = b"0123456789abcdef"


def random_bytes(count: int) -> bytes:
    return SALT[:count]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_plain_password_is_salted_with_random_bytes_and_4096_iterations() -> None:
    user = parse_scram_user('SCRAM-SHA-256=[name="ann",password=se=cret]', random_bytes)
    expected = credential_of(
        ScramMechanism.SHA_256, SALT, salted_password(ScramMechanism.SHA_256, "se=cret", SALT, 4096), 4096
    )
    assert (user.name, user.mechanism, user.credential) == ("ann", ScramMechanism.SHA_256, expected)
    assert "cret" not in repr(user)


def test_salted_password_is_used_with_the_given_salt_and_iterations() -> None:
    salted = salted_password(ScramMechanism.SHA_512, "secret", b"salt", 8192)
    text = f'SCRAM-SHA-512=[name=ann,iterations=8192,salt="{encoded(b"salt")}",saltedpassword="{encoded(salted)}"]'
    expected = credential_of(ScramMechanism.SHA_512, b"salt", salted, 8192)
    assert parse_scram_user(text, random_bytes).credential == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SCRAM-SHA-1=[name=ann,password=hidden]", "mechanism"),
        ("SCRAM-SHA-256", "mechanism"),
        ("SCRAM-SHA-256=name=ann,password=hidden", "brackets"),
        ("SCRAM-SHA-256=[password=hidden]", "name"),
        ("SCRAM-SHA-256=[name=ann]", "password"),
        ("SCRAM-SHA-256=[name=ann,password=]", "empty"),
        ("SCRAM-SHA-256=[name=ann,password=hidden,hidden2]", "parts"),
        ("SCRAM-SHA-256=[name=ann,password=hidden,other=x]", "parts"),
        ("SCRAM-SHA-256=[name=ann,password=hidden,iterations=4095]", "4096"),
        ("SCRAM-SHA-256=[name=ann,password=hidden,iterations=16385]", "16384"),
        ("SCRAM-SHA-256=[name=ann,password=hidden,salt=!]", "salt is not base64"),
        ("SCRAM-SHA-256=[name=ann,saltedpassword=aGlkZGVu]", "salt with which"),
        ("SCRAM-SHA-256=[name=ann,salt=c2FsdA==,saltedpassword=hidden!]", "saltedpassword is not base64"),
    ],
)
def test_error_for_an_invalid_scram_argument_does_not_contain_its_secret(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        parse_scram_user(text, random_bytes)
    assert "hidden" not in str(refused.value)
