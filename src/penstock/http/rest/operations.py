"""Lists, describes and cancels the long operations that this node runs for REST clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.http.rest.cluster import PAGE, paged
from penstock.http.rest.fields import Field
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route

if TYPE_CHECKING:
    from penstock.http.operations import Operation
    from penstock.http.rest.service import Service


async def list_operations(service: Service, call: Call) -> Any:
    return paged([each.summary() for each in service.operations.list() if service.may_see(each)], call, "operations")


async def describe_operation(service: Service, call: Call) -> Any:
    return _found(service, call).as_json()


async def cancel_operation(service: Service, call: Call) -> Any:
    """Cancels an operation. Work that the operation has begun in the cluster, such as a reassignment, continues."""
    operation = _found(service, call)
    return {"operation": operation.number, "cancelled": service.operations.cancel(operation)}


def _found(service: Service, call: Call) -> Operation:
    number = call.path["operation"]
    operation = service.operations.get(number)
    if operation is None or not service.may_see(operation):
        raise Problem(404, f"Node {service.broker.node_id} has no operation {number}: ask the node that ran it.")
    return operation


OPERATION = {"operation": Field("integer", "number of the operation on this node", low=1)}
ROUTES = (
    Route(
        "GET",
        "/v1/operations",
        "Lists long operations of this node, the newest first",
        list_operations,
        query=PAGE,
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/operations/{operation}",
        "Shows progress and result of an operation",
        describe_operation,
        path=OPERATION,
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/operations/{operation}/cancel",
        "Cancels an operation",
        cancel_operation,
        path=OPERATION,
        body={},
        status=202,
        own_acls=True,
    ),
)
