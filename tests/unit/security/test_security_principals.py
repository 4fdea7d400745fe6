"""Principals of client certificates: names as Java writes them, and Kafka's mapping rules."""

from __future__ import annotations

import pytest

from penstock.security.principals import certificate_principal, distinguished_name, parse_mapping_rules

SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Big, Inc."),),
    (("organizationalUnitName", "Team"), ("userId", "7")),
    (("commonName", "Ann"),),
)
NAME = "CN=Ann,OU=Team+UID=7,O=Big\\, Inc.,C=DE"


def test_certificate_subject_is_written_with_the_most_specific_attribute_first() -> None:
    assert distinguished_name(SUBJECT) == NAME


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", None),
        ("RULE:^CN=(.*?),.*$/$1/", "Ann"),
        ("RULE:^CN=(.*?),.*$/$1/L", "ann"),
        ("RULE:^CN=(.*?),.*$/$1@team/U, DEFAULT", "ANN@TEAM"),
        ("RULE:^CN=(Bob),.*$/$1/, DEFAULT", NAME),
        ("RULE:^CN=(Bob),.*$/$1/,RULE:.*C=(..)$/$1\\/x/L", "de/x"),
        ("RULE:^CN=(Bob),.*$/$1/", None),
        ("RULE:CN=Ann/ann/", None),
    ],
)
def test_first_matching_principal_mapping_rule_gives_the_user(rules: str, user: str | None) -> None:
    apply = parse_mapping_rules(rules)
    if user is None:
        with pytest.raises(ValueError, match="no rule"):
            apply(NAME)
    else:
        assert apply(NAME) == user


@pytest.mark.parametrize(
    "rules", ["RULE:x", "RULE:a/b", "RULE:a/b/Z", "NONSENSE", "RULE:(/x/", "DEFAULT RULE", "RULE:^CN=(.*)$/$2/"]
)
def test_invalid_principal_mapping_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"ssl\.principal\.mapping\.rules"):
        parse_mapping_rules(rules)


def test_client_without_a_certificate_gets_no_principal_from_tls() -> None:
    assert certificate_principal(None, str) is None
    with pytest.raises(ValueError, match="subject is empty"):  # not ANONYMOUS, which may be a super user
        certificate_principal({"subject": ()}, str)
    assert certificate_principal({"subject": SUBJECT}, str.upper) == f"User:{NAME.upper()}"
