"""Decides AlterClientQuotas requests, and answers DescribeClientQuotas from the image.

A quota belongs to an entity: a user, a client id, both together, or an address. An entity whose name is None is the
default for its type.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import islice

from penstock.metadata.configs.definition import ConfigType
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Decision
from penstock.metadata.image import MetadataImage, QuotaEntity
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.messages import api_48_describe_client_quotas as describe
from penstock.protocol.messages import api_49_alter_client_quotas as alter
from penstock.protocol.persisted.metadata.client_quota_record import ClientQuotaRecord, EntityData
from penstock.security.hosts import canonical_host

#: Entities that one step of DescribeClientQuotas examines.
ENTITIES_AT_ONCE = 10

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

_USER_AND_CLIENT_KEYS = {
    PRODUCER_BYTE_RATE: ConfigType.LONG,
    CONSUMER_BYTE_RATE: ConfigType.LONG,
    REQUEST_PERCENTAGE: ConfigType.DOUBLE,
    CONTROLLER_MUTATION_RATE: ConfigType.DOUBLE,
}
_IP_KEYS = {CONNECTION_CREATION_RATE: ConfigType.INT}
_LARGEST = {ConfigType.INT: 2**31 - 1, ConfigType.LONG: 2**63 - 1}
_ARTICLE = {ConfigType.INT: "an INT", ConfigType.LONG: "a LONG"}


class MatchType(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


# --- alter ----------------------------------------------------------------------------------------


def alter_client_quotas(
    image: MetadataImage, request: alter.AlterClientQuotasRequest
) -> Decision[alter.AlterClientQuotasResponse]:
    """Changes the quotas of each entity, with one result per entity. If an entity is given twice, its second entry gets
    an error."""
    records: list[ClientQuotaRecord] = []
    outcomes: dict[QuotaEntity, KafkaError | None] = {}
    for entry in request.entries:
        entity: QuotaEntity = tuple(sorted({each.entity_type: each.entity_name for each in entry.entity}.items()))
        if entity in outcomes:
            outcomes[entity] = _invalid(
                f"{_shown(entity)} is in the request twice, and only its first entry counts: give it once."
            )
            continue
        try:
            records += _alter_entity(image, entity, entry.ops)
            outcomes[entity] = None
        except KafkaError as error:
            outcomes[entity] = without_frames(error)
    if len(records) > MAX_RECORDS_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Too many quotas in one request: alter fewer at a time.")
    entries = [
        alter.AlterClientQuotasResponseEntryData(
            error_code=ErrorCode.NONE if outcome is None else outcome.code,
            error_message=None if outcome is None else outcome.message,
            entity=[alter.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        )
        for entity, outcome in outcomes.items()
    ]
    return Decision([] if request.validate_only else records, alter.AlterClientQuotasResponse(entries=entries))


def _alter_entity(image: MetadataImage, entity: QuotaEntity, ops: list[alter.OpData]) -> list[ClientQuotaRecord]:
    keys = _keys_for(entity)
    if len({op.key for op in ops}) != len(ops):
        raise _invalid(f"{_shown(entity)} has a quota key twice: give each key once.")
    current = image.client_quotas.get(entity, {})
    records = []
    for op in ops:
        if op.remove:
            if op.key in current:
                records.append(_record(entity, op.key, 0.0, remove=True))
            continue
        _check_value(keys, op.key, op.value)
        if current.get(op.key) != op.value:
            records.append(_record(entity, op.key, op.value, remove=False))
    return records


def _record(entity: QuotaEntity, key: str, value: float, *, remove: bool) -> ClientQuotaRecord:
    named = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return ClientQuotaRecord(entity=named, key=key, value=value, remove=remove)


def _keys_for(entity: QuotaEntity) -> Mapping[str, ConfigType]:
    """Returns the quota names that an entity of this kind can have. Raises KafkaError for an impossible kind of
    entity."""
    if not entity:
        raise _invalid("The quota has no entity: name a user, client-id or ip.")
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"'{kind}' is not a type of quota entity: use user, client-id or ip.")
        if name == "":
            raise _invalid(f"The {kind} has an empty name: give a name, or null for the default.")
    kinds = dict(entity)
    if IP not in kinds:
        return _USER_AND_CLIENT_KEYS
    if len(kinds) > 1:
        raise _invalid("A quota for an ip can't have a user or client-id: leave them out.")
    if kinds[IP] is not None and address_of(str(kinds[IP])) is None:
        raise _invalid(f"'{kinds[IP]}' is not an IP address: give an IP address, or localhost.")
    return _IP_KEYS


def address_of(host: str) -> str | None:
    """Returns the IP address for a quota of this host; None if `host` is neither an address nor `localhost`."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return canonical_host(host)


def _check_value(keys: Mapping[str, ConfigType], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"There is no quota '{key}' for this type of entity: check the key.")
    if not value > 0:  # also refuses NaN
        raise _invalid(f"{key} can't be {value}: give a number above 0.")
    kind = keys[key]
    if kind is ConfigType.DOUBLE:
        return
    if value > _LARGEST[kind]:
        raise _invalid(f"{key} can't be {value}: give a number that fits {_ARTICLE[kind]}.")
    if abs(value % 1.0) > 1e-6:
        raise _invalid(f"{key} can't be {value}: give a whole number.")


# --- describe -------------------------------------------------------------------------------------


def describe_client_quotas(
    image: MetadataImage, request: describe.DescribeClientQuotasRequest
) -> Iterator[list[describe.EntryData]]:
    """Yields the quotas whose entities match the filter, in lists. Each list has the matches among the next
    `ENTITIES_AT_ONCE` entities, so that the caller can pause between lists."""
    exact, any_of = _filters(request.components)
    entities = iter(image.client_quotas.items())
    while some := list(islice(entities, ENTITIES_AT_ONCE)):
        yield [
            describe.EntryData(
                entity=[describe.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[describe.ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in some
            if _matches(dict(entity), exact, any_of, strict=request.strict)
        ]


def _filters(components: list[describe.ComponentData]) -> tuple[dict[str, str | None], set[str]]:
    """Returns the filter of a DescribeClientQuotas request as two conditions on an entity.

    The first is a dict from types to the name that the entity must have. The second is the set of types for which the
    entity may have any name.
    """
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("A filter component has no entity type: use user, client-id or ip.")
        if kind in exact or kind in any_of:
            raise _invalid(f"The filter contains {kind} twice: give each type once.")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"Quotas can't be filtered by '{kind}': use user, client-id or ip."
            )
        match component.match_type:
            case MatchType.EXACT:
                if component.match is None:
                    raise _invalid(f"An EXACT match of {kind} needs a name: give a name, or use DEFAULT.")
                exact[kind] = component.match
            case MatchType.DEFAULT | MatchType.SPECIFIED as match_type:
                if component.match is not None:
                    name = MatchType(match_type).name
                    raise _invalid(f"A {name} match of {kind} takes no name: leave the name null.")
                if match_type == MatchType.DEFAULT:
                    exact[kind] = None
                else:
                    any_of.add(kind)
            case unknown:
                raise _invalid(f"{unknown} is not a match type: use 0 (exact), 1 (default) or 2 (specified).")
    kinds = exact.keys() | any_of
    if IP in kinds and len(kinds) > 1:
        raise _invalid("A quota can't have an ip together with a user or client-id: filter by one or the other.")
    return exact, any_of


def _matches(
    entity: Mapping[str, str | None], exact: Mapping[str, str | None], any_of: set[str], *, strict: bool
) -> bool:
    if strict and len(entity) != len(exact) + len(any_of):
        return False
    return any_of <= entity.keys() and all(kind in entity and entity[kind] == name for kind, name in exact.items())


def _shown(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)
