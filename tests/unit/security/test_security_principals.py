"""Tests principals of client certificates: names as Java writes them, and Kafka's mapping rules."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.metadata.pattern_groups import GroupPattern
from penstock.security.principals import certificate_principal, distinguished_name, parse_mapping_rules
from tools.certificates import Authority

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
    ("value", "written"),  # as Java's X500Principal.getName() writes them
    [
        ("a=b", "a\\=b"),
        ("#a#b", "\\#a\\#b"),
        ("  a  b ", "\\ \\ a  b\\ "),
        (" ", "\\ "),
        ("a\0b", "a\\00b"),
        ("ä\n\xa0", "ä\n\xa0"),
        ('+"\\<>;,', '\\+\\"\\\\\\<\\>\\;\\,'),
    ],
)
def test_special_characters_of_a_subject_are_escaped_as_java_escapes_them(value: str, written: str) -> None:
    assert distinguished_name(((("commonName", value),),)) == f"CN={written}"


def test_certificate_attributes_without_a_short_name_are_written_as_in_java(tmp_path: Path) -> None:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(NameOID.COMMON_NAME, "ann"),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "ann@example.org"),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, "77"),
            x509.NameAttribute(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), "own"),
        ]
    )
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    der = Authority(tmp_path, "ca").signed(subject, key).public_bytes(serialization.Encoding.DER)
    read = [[(one.oid._name, str(one.value))] for one in subject]
    assert distinguished_name(read, der) == (
        "1.3.6.1.4.1.99999.1=#0c036f776e,2.5.4.5=#13023737,"
        "1.2.840.113549.1.9.1=#160f616e6e406578616d706c652e6f7267,CN=ann,C=DE"
    )
    for cut in (0, 1, 40, len(der) // 2):
        with pytest.raises(ValueError, match="subject can't be parsed"):
            distinguished_name(read, der[:cut])


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
def test_user_name_is_made_by_the_first_principal_mapping_rule_that_matches(rules: str, user: str | None) -> None:
    apply = parse_mapping_rules(rules, GroupPattern)
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
        parse_mapping_rules(rules, GroupPattern)


def test_client_without_a_certificate_gets_no_principal_from_tls() -> None:
    assert certificate_principal(None, str) is None
    with pytest.raises(ValueError, match="subject is empty"):  # not ANONYMOUS, which may be a super user
        certificate_principal({"subject": ()}, str)
    assert certificate_principal({"subject": SUBJECT}, str.upper) == f"User:{NAME.upper()}"


#: The example of Kafka's documentation.
SIX_GROUPS = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, DEFAULT"


def test_matching_a_malicious_certificate_subject_takes_a_limited_time() -> None:
    apply = parse_mapping_rules(SIX_GROUPS, GroupPattern)
    assert apply("CN=Ann,OU=Team,O=Org,L=Bonn,ST=NRW,C=DE") == "ann@team"
    hostile = "CN=x" + ",OU=a" * 60 + ",O=a" * 60 + ",L=a" * 60 + ",ST=a" * 60
    begin = time.thread_time()
    assert apply(hostile) == hostile
    for number in range(20):  # a backtracking matcher takes twice as long for each further character
        with pytest.raises(ValueError, match="no rule"):
            parse_mapping_rules("RULE:(CN=(a+)+)+/$1/", GroupPattern)("CN=" + "a" * (20 + number) + "!")
    assert time.thread_time() - begin < 5


def test_certificate_subject_that_takes_too_many_matching_steps_is_refused() -> None:
    apply = parse_mapping_rules(SIX_GROUPS, GroupPattern)
    with pytest.raises(ValueError, match="takes too long"):
        apply("CN=" + ",OU=,O=,L=,ST=," * 5_000)


@pytest.mark.parametrize("value", ["ann\x00.evil", "ann\n", "änn\u202eüñ", "\U0001f600", "a" * 1_000])
def test_certificate_names_with_unusual_characters_are_not_changed_or_cut(value: str) -> None:
    name = f"CN={value},O=Org"
    assert parse_mapping_rules("DEFAULT", GroupPattern)(name) == name
    assert parse_mapping_rules("RULE:(?s)^CN=(.*?),.*$/$1/", GroupPattern)(name) == value
