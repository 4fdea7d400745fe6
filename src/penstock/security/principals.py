"""Maps the subject of a client certificate to a principal, with Kafka's `ssl.principal.mapping.rules`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.security.certificate_subjects import raw_attributes

#: Attribute names of RFC 2253; Java writes all other attributes as numbers.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_SPECIAL = ',=+<>#;"\\'
_DEFAULT = "DEFAULT"
#: Key of the whole certificate in DER form, beside the keys of Python's `ssl`.
DER = "der"
#: Characters of a name in an error message.
MAX_SHOWN = 200
_GROUP = re.compile(r"\$(\d)")
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)\s*(?:,\s*|$)", re.DOTALL)


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]], certificate: bytes = b"") -> str:
    """Returns a certificate's subject in the form of RFC 2253, as Java writes it: `CN=ann,OU=team,O=org`.

    `subject` has the form that Python's `ssl` returns. `certificate` is the certificate in DER form. It is needed for
    attributes without a short name, because Java writes their object identifier and their value in hex. Raises
    ValueError if the certificate can't be parsed.
    """
    known = all(name in _SHORT for attributes in subject for name, _ in attributes)
    numbered = iter([] if known else raw_attributes(certificate))
    parts = []
    for attributes in subject:
        written = []
        for name, value in attributes:
            number, content = ("", "") if known else next(numbered)
            written.append(f"{_SHORT[name]}={_escaped(value)}" if name in _SHORT else f"{number}=#{content}")
        parts.append("+".join(written))
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    inner = value.strip(" ")
    if not inner:
        return "\\ " * len(value)
    start = value.index(inner)
    text = "".join(f"\\{char}" if char in _SPECIAL else char for char in inner).replace("\0", "\\00")
    return "\\ " * start + text + "\\ " * (len(value) - start - len(inner))


class SubjectPattern(Protocol):
    """Matches a compiled pattern against subjects of certificates, within a time limit.

    Clients choose these subjects: without the limit, a hostile subject could make a match very slow.
    """

    @property
    def groups(self) -> int: ...

    def match(self, text: str) -> tuple[str, ...] | None:
        """Returns the whole text and the text of each group; None if the pattern does not match. Raises ValueError if
        the time limit is reached."""
        ...


def parse_mapping_rules(text: str, compile_pattern: Callable[[str], SubjectPattern]) -> Callable[[str], str]:
    """Parses the rules. Returns a function that maps a distinguished name to a user name.

    Raises ValueError if a rule is invalid; the returned function raises ValueError if it can't map a name. The first
    rule whose pattern matches the whole name applies. The rule `DEFAULT` keeps the name unchanged.
    """
    rules: list[tuple[SubjectPattern, str, str] | None] = []
    rest = text.strip()
    while rest:
        if rest == _DEFAULT or rest.startswith((f"{_DEFAULT},", f"{_DEFAULT} ")):
            rules.append(None)
            rest = rest.removeprefix(_DEFAULT).lstrip(", ")
            continue
        match = _RULE.match(rest)
        if match is None:
            raise ValueError(
                "ssl.principal.mapping.rules has a rule that is not DEFAULT or RULE:pattern/replacement/[LU]"
            )
        rest = rest[match.end() :]
        pattern, replacement = (part.replace("\\/", "/") for part in match.group(1, 2))
        try:
            compiled = compile_pattern(pattern)
        except ValueError as problem:
            raise ValueError(f"ssl.principal.mapping.rules has a pattern that can't be used: {problem}") from None
        if any(int(number) > compiled.groups for number in _GROUP.findall(replacement)):
            raise ValueError(f"ssl.principal.mapping.rules uses a group that the pattern {pattern!r} does not have")
        rules.append((compiled, replacement, match[3]))

    def apply(name: str) -> str:
        for rule in rules:
            if rule is None:
                return name
            pattern, replacement, case = rule
            found = pattern.match(name)
            if found is not None:
                user = _filled(replacement, found)
                return {"L": user.lower(), "U": user.upper()}.get(case, user)
        raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {name[:MAX_SHOWN]!r}")

    return apply


def _filled(replacement: str, groups: tuple[str, ...]) -> str:
    return _GROUP.sub(lambda group: groups[int(group[1])], replacement)


def certificate_principal(certificate: dict[str, Any] | None, map_name: Callable[[str], str]) -> str | None:
    """Returns the principal of a verified client certificate; None if the client sent no certificate.

    Raises ValueError if the subject is empty or no rule matches it.
    """
    if not certificate:
        return None
    if not certificate.get("subject"):
        raise ValueError("the certificate's subject is empty")
    name = distinguished_name(certificate["subject"], certificate.get(DER, b""))
    return f"User:{map_name(name)}"
