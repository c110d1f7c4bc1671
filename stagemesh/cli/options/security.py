"""Declares the options of API keys and of TLS."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from runtime.rpc.channels import ChannelTls
from runtime.rpc.tls import ApiTls, MeshTls, Role, trusting
from stagemesh.cli.options.option_types import Flag, Positive
from stagemesh.client.async_client import DEFAULT_MESH, DEFAULT_TARGET

_ACCESS = Group("Access", sort_key=5)
_SECURITY = Group("Security", sort_key=5)


def _check_access(type_: Any, access: "AccessOptions | None") -> None:
    if access is None:
        return
    if access.api_keys is not None and access.allow_anonymous:
        raise ValueError("--allow-anonymous contradicts --api-keys; give only one of them")
    limits = (access.key_max_in_flight, access.key_tokens_per_minute)
    if access.api_keys is None and (access.protect_state or any(limits)):
        raise ValueError("--protect-state and --key-... have no effect without --api-keys FILE")


@Parameter(name="*", group=_ACCESS, validator=_check_access)
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Access to the APIs for clients."""

    api_keys: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None
    """File of API keys, from `stagemesh keys add`. [default: no keys, on loopback only]"""

    allow_anonymous: Annotated[bool, Flag] = False
    """Serve other machines without API keys: anyone who reaches the APIs can use them."""

    protect_state: Annotated[bool, Flag] = False
    """Require a key also for /metrics, /sd, /state, /version and the mesh's state."""

    key_max_in_flight: Positive | None = None
    """Most concurrent requests per key, unless FILE sets a limit. [default: no limit]"""

    key_tokens_per_minute: Positive | None = None
    """Most prompt and answer tokens per key and minute, likewise. [default: no limit]"""


@Parameter(name="*", group=_SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSecurityOptions:
    """Security of the links between processes of the mesh."""

    tls_dir: Path | None = None
    """Folder of this node's certificates, from `stagemesh certs`; enables mutual TLS."""

    insecure_mesh: Annotated[bool, Flag] = False
    """Listen beyond loopback without TLS; for trusted networks only."""

    def tls(self, role: Role) -> MeshTls | None:
        """The certificates for `role`; raises `CertificateError`."""
        return None if self.tls_dir is None else MeshTls.open(self.tls_dir, role)


def _check_api(type_: Any, api: "ApiSecurityOptions | None") -> None:
    if api and (api.api_tls_cert is None) != (api.api_tls_key is None):
        raise ValueError("--api-tls-cert and --api-tls-key must be given together")


@Parameter(name="*", group=_SECURITY, validator=_check_api)
@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSecurityOptions:
    """TLS of the APIs for clients."""

    api_tls_cert: Path | None = None
    """Certificate chain of the gRPC and HTTP APIs, in PEM; enables TLS for clients."""

    api_tls_key: Path | None = None
    """Private key of --api-tls-cert, in PEM."""

    def tls(self) -> ApiTls | None:
        """The certificate, if given; raises `CertificateError`."""
        if self.api_tls_cert is None or self.api_tls_key is None:
            return None
        return ApiTls.open(self.api_tls_cert, self.api_tls_key)


@Parameter(name="*", group=_SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurityOptions:
    """TLS of a client's connection."""

    tls_ca: Path | None = None
    """CA certificates that verify the API, in PEM; enables TLS."""

    def api_tls(self) -> ChannelTls | None:
        """TLS for an API for clients; raises `CertificateError`."""
        return None if self.tls_ca is None else trusting(self.tls_ca)


@Parameter(name="*", group=_SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSecurityOptions(ClientSecurityOptions):
    """TLS of an operator's command."""

    tls_dir: Path | None = None
    """Folder of certificates from `stagemesh certs`, to connect to a --mesh or worker address.
    Ignored with --tls-ca."""

    @property
    def is_mesh(self) -> bool:
        """Whether the target is a coordinator's --mesh or a worker's --listen address with TLS."""
        return self.tls_ca is None and self.tls_dir is not None

    @property
    def default_target(self) -> str:
        """The coordinator's default address for these options."""
        return DEFAULT_MESH if self.is_mesh else DEFAULT_TARGET

    def channel_tls(self, role: Role | None) -> ChannelTls | None:
        """TLS for an API, or for a process with `role`; raises `CertificateError`."""
        if self.tls_ca is None and self.tls_dir is not None:
            return MeshTls.of_any_role(self.tls_dir).credentials_for(role)
        return self.api_tls()


ACCESS_DEFAULTS = AccessOptions()
MESH_SECURITY_DEFAULTS = MeshSecurityOptions()
API_SECURITY_DEFAULTS = ApiSecurityOptions()
CLIENT_SECURITY_DEFAULTS = ClientSecurityOptions()
OPERATOR_SECURITY_DEFAULTS = OperatorSecurityOptions()
