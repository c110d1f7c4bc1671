"""Authorizes callers on the mesh's links: the caller's role against the roles of the method.

Applies only where a listener requires certificates; without TLS every caller is authorized.
"""

from typing import Any, Final

import grpc.aio

from runtime.errors import ForbiddenPeerError
from runtime.rpc.tls import Role

_COORDINATOR: Final = frozenset({Role.COORDINATOR})
_OPERATOR: Final = frozenset({Role.COORDINATOR, Role.CLIENT})

# By method, else by service. Any role may call what is not listed: health and reflection.
_CALLERS: Final = {
    "/stagemesh.v1.Stage": _COORDINATOR,
    # Which of the two is required depends on the stage; `check_caller` checks it there.
    "/stagemesh.v1.Stage/Forward": frozenset({Role.COORDINATOR, Role.WORKER}),
    "/stagemesh.v1.Stage/Status": _OPERATOR,
    "/stagemesh.v1.Mesh": frozenset({Role.WORKER}),
    "/stagemesh.v1.Operations": _OPERATOR,
}

_ROLES_OF_NAMES: Final = {role.server_name: role for role in Role}


def authorize(method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Raises `ForbiddenPeerError` unless the role of the caller may call `method`."""
    service, _, _ = method.rpartition("/")
    callers = _CALLERS.get(method) or _CALLERS.get(service)
    if callers is not None:
        check_caller(context, callers, method)


def check_caller(
    context: grpc.aio.ServicerContext[Any, Any], roles: frozenset[Role], what: str
) -> None:
    """Raises `ForbiddenPeerError` unless the caller has one of `roles`, or there is no TLS."""
    authentication = context.auth_context()
    if b"ssl" not in authentication.get("transport_security_type", ()):
        return
    names = authentication.get("x509_subject_alternative_name", ())
    held = {_ROLES_OF_NAMES.get(name.decode(errors="replace")) for name in names}
    if not held & roles:
        raise ForbiddenPeerError(
            what=what,
            expected=" or ".join(sorted(roles)),
            actual=" and ".join(sorted(role for role in held if role)) or "no role of this mesh",
        )
