"""Decides CreateAcls and DeleteAcls requests, and answers DescribeAcls from the image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Decision
from penstock.metadata.image import AclImage, MetadataImage
from penstock.metadata.names import random_uuid
from penstock.metadata.snapshot import acl_record
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.messages import api_29_describe_acls as describe
from penstock.protocol.messages import api_30_create_acls as create
from penstock.protocol.messages import api_31_delete_acls as delete
from penstock.protocol.persisted.metadata.remove_access_control_entry_record import RemoveAccessControlEntryRecord
from penstock.security.vocabulary import CLUSTER_NAME, WILDCARD, AclResource, Operation, PatternType, Permission

#: Comparisons of an ACL with a filter that one DeleteAcls may need; one filter is always served.
MAX_COMPARISONS = 100_000
_MAX_NAME = 32_767 // 4

_RESOURCES = frozenset(AclResource) - {AclResource.UNKNOWN, AclResource.ANY}
_OPERATIONS = frozenset(Operation) - {Operation.UNKNOWN, Operation.ANY}


class AclFilter(NamedTuple):
    """Selects ACLs. In a filter, None and ANY match all values. MATCH selects the ACLs that apply to the named
    resource."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: AclImage) -> bool:
        return (
            self.resource_type in (AclResource.ANY, acl.resource_type)
            and (self.resource_name is None or self._names(acl))
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission_type in (Permission.ANY, acl.permission_type)
        )

    def _names(self, acl: AclImage) -> bool:
        assert self.resource_name is not None
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)

    @property
    def selects_one_name(self) -> bool:
        return self.resource_name is not None and self.pattern_type != PatternType.MATCH


def filter_of(asked: describe.DescribeAclsRequest | delete.DeleteAclsFilter) -> AclFilter:
    """Returns the AclFilter of a request. Raises KafkaError if the request has an unknown operation, type or permission
    number."""
    selected = AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
    for field, value, known in (
        ("resource type", selected.resource_type, AclResource),
        ("pattern type", selected.pattern_type, PatternType),
        ("operation", selected.operation, Operation),
        ("permission type", selected.permission_type, Permission),
    ):
        if not value or value not in known.__members__.values():
            raise _invalid(
                f"The filter has the {field} {value}, which does not exist: use a known number, or 1 for any."
            )
    return selected


# --- describe -------------------------------------------------------------------------------------


def matching_acls(acls: Iterable[AclImage], selected: AclFilter) -> Iterator[AclImage | None]:
    """Yields each ACL that the filter selects, and None for each other ACL. So the caller can pause after a number of
    ACLs."""
    for acl in acls:
        yield acl if selected.matches(acl) else None


def described(acls: Iterable[AclImage]) -> list[describe.DescribeAclsResource]:
    """Groups ACLs by their resource pattern, as the DescribeAcls response lists them."""
    resources: dict[tuple[int, str, int], describe.DescribeAclsResource] = {}
    for acl in acls:
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        if key not in resources:
            resources[key] = describe.DescribeAclsResource(
                resource_type=acl.resource_type, resource_name=acl.resource_name, pattern_type=acl.pattern_type
            )
        resources[key].acls.append(
            describe.AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        )
    return list(resources.values())


# --- create ---------------------------------------------------------------------------------------


def create_acls(
    image: MetadataImage, request: create.CreateAclsRequest, random: Random
) -> Decision[create.CreateAclsResponse]:
    """Creates each valid ACL once. For an ACL that already exists, answers success and writes no record."""
    names = {asked.resource_name for asked in request.creations}
    existing = {acl for acl in image.acls.values() if acl.resource_name in names}
    records: list[Any] = []
    results: list[create.AclCreationResult] = []
    for asked in request.creations:
        try:
            acl = _valid(asked)
        except KafkaError as error:
            without_frames(error)
            results.append(create.AclCreationResult(error_code=error.code, error_message=error.message))
            continue
        results.append(create.AclCreationResult())
        if acl not in existing:
            existing.add(acl)
            records.append(acl_record(random_uuid(random), acl))
    if len(records) > MAX_RECORDS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The request creates more than {MAX_RECORDS_PER_REQUEST} ACLs: split it into several requests.",
        )
    return Decision(records, create.CreateAclsResponse(results=results))


def _valid(asked: create.AclCreation) -> AclImage:
    if asked.resource_type not in _RESOURCES:
        raise _invalid(f"Invalid resource type {asked.resource_type}: an ACL needs one kind of resource.")
    if asked.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid pattern type {asked.resource_pattern_type}: an ACL is LITERAL (3) or PREFIXED (4).")
    if asked.operation not in _OPERATIONS:
        raise _invalid(f"Invalid operation {asked.operation}: an ACL needs one operation, or ALL (2).")
    if asked.permission_type not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permission type {asked.permission_type}: an ACL is DENY (2) or ALLOW (3).")
    if not asked.resource_name:
        raise _invalid("The resource name of an ACL must not be empty: give a name, or * for all.")
    if len(asked.resource_name) > _MAX_NAME or len(asked.principal) > _MAX_NAME or len(asked.host) > _MAX_NAME:
        raise _invalid(f"A name in an ACL has more than {_MAX_NAME} characters: shorten it.")
    if asked.resource_type == AclResource.CLUSTER and asked.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}.")
    kind, _, name = asked.principal.partition(":")
    if not kind or not name:
        raise _invalid(f"{asked.principal!r} is not a principal: write it as User:name.")
    if not asked.host:
        raise _invalid("The host of an ACL must not be empty: use * for all hosts.")
    return AclImage(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        asked.host,
        asked.operation,
        asked.permission_type,
    )


# --- delete ---------------------------------------------------------------------------------------


def delete_acls(image: MetadataImage, request: delete.DeleteAclsRequest) -> Decision[delete.DeleteAclsResponse]:
    """Deletes the ACLs that each filter selects. An ACL that two filters select appears in both results."""
    names = {asked.resource_name_filter for asked in request.filters}
    by_name: dict[str, dict[bytes, AclImage]] = {}
    for acl_id, acl in image.acls.items():
        if acl.resource_name in names:
            by_name.setdefault(acl.resource_name, {})[acl_id] = acl
    removed: dict[bytes, None] = {}
    results: list[delete.DeleteAclsFilterResult] = []
    comparisons = 0
    for asked in request.filters:
        try:
            selected = filter_of(asked)
        except KafkaError as error:
            without_frames(error)
            results.append(delete.DeleteAclsFilterResult(error_code=error.code, error_message=error.message))
            continue
        candidates: Mapping[bytes, AclImage] = image.acls
        if selected.selects_one_name:
            candidates = by_name.get(selected.resource_name or "", {})
        elif comparisons and comparisons + len(candidates) > MAX_COMPARISONS:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "The request has too many filters: send fewer at a time.")
        comparisons += len(candidates)
        result = delete.DeleteAclsFilterResult()
        for acl_id, acl in candidates.items():
            if selected.matches(acl):
                removed[acl_id] = None
                result.matching_acls.append(_matching(acl))
        results.append(result)
    if len(removed) > MAX_RECORDS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The filters select {len(removed)} ACLs, more than {MAX_RECORDS_PER_REQUEST}: use narrower filters.",
        )
    records = [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in removed]
    return Decision(records, delete.DeleteAclsResponse(filter_results=results))


def _matching(acl: AclImage) -> delete.DeleteAclsMatchingAcl:
    return delete.DeleteAclsMatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
