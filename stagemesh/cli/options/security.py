"""Owns the options for who may use what: API keys at the APIs, and TLS on every link."""

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
        raise ValueError("--allow-anonymous contradicts --api-keys; leave one of them out")
    limits = (access.key_max_in_flight, access.key_tokens_per_minute)
    if access.api_keys is None and (access.protect_state or any(limits)):
        raise ValueError("--protect-state and --key-... mean nothing without --api-keys FILE")


@Parameter(name="*", group=_ACCESS, validator=_check_access)
@dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """Who may use the APIs."""

    api_keys: Annotated[Path | None, Parameter(show_default=False, metavar="FILE")] = None
    """API keys, as `stagemesh keys add` writes them. [default: on loopback nobody needs one]"""

    allow_anonymous: Annotated[bool, Flag] = False
    """Let APIs that other machines can reach serve anybody, without a key."""

    protect_state: Annotated[bool, Flag] = False
    """Ask for a key also at /metrics, /sd, /state, /version and for the mesh's state."""

    key_max_in_flight: Positive | None = None
    """Requests of one key at the same time, where FILE says nothing. [default: any]"""

    key_tokens_per_minute: Positive | None = None
    """Tokens of one key in a minute, read and generated, likewise. [default: any]"""


@Parameter(name="*", group=_SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSecurityOptions:
    """Who may take part in the mesh."""

    tls_dir: Path | None = None
    """This node's certificates, from `stagemesh certs`: all links of the mesh are mutual TLS."""

    insecure_mesh: Annotated[bool, Flag] = False
    """Let links of the mesh listen beyond loopback without TLS, in a network that you trust."""

    def tls(self, role: Role) -> MeshTls | None:
        """The certificate of `role`; raises `CertificateError`."""
        return None if self.tls_dir is None else MeshTls.open(self.tls_dir, role)


def _check_api(type_: Any, api: "ApiSecurityOptions | None") -> None:
    if api and (api.api_tls_cert is None) != (api.api_tls_key is None):
        raise ValueError("--api-tls-cert and --api-tls-key go together")


@Parameter(name="*", group=_SECURITY, validator=_check_api)
@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSecurityOptions:
    """What the APIs for clients show."""

    api_tls_cert: Path | None = None
    """Certificate of both APIs, in PEM with its chain: they speak TLS."""

    api_tls_key: Path | None = None
    """Its private key, in PEM."""

    def tls(self) -> ApiTls | None:
        """Raises `CertificateError`."""
        if self.api_tls_cert is None or self.api_tls_key is None:
            return None
        return ApiTls.open(self.api_tls_cert, self.api_tls_key)


@Parameter(name="*", group=_SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurityOptions:
    """Whom a client believes."""

    tls_ca: Path | None = None
    """Authority that vouches for the API's certificate, in PEM: the API is asked over TLS."""

    def api_tls(self) -> ChannelTls | None:
        """For an API for clients; raises `CertificateError`."""
        return None if self.tls_ca is None else trusting(self.tls_ca)


@Parameter(name="*", group=_SECURITY)
@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSecurityOptions(ClientSecurityOptions):
    """Whom an operator's command believes, and what it shows of itself."""

    tls_dir: Path | None = None
    """Certificates from `stagemesh certs`: the address is one of the mesh's links, over TLS.
    --tls-ca goes before."""

    @property
    def is_mesh(self) -> bool:
        """The address is a coordinator's --mesh or a worker's --listen, with TLS."""
        return self.tls_ca is None and self.tls_dir is not None

    @property
    def default_target(self) -> str:
        """Where a coordinator answers that kind of question."""
        return DEFAULT_MESH if self.is_mesh else DEFAULT_TARGET

    def channel_tls(self, role: Role | None) -> ChannelTls | None:
        """For an API, or for a process of the mesh with `role`; raises `CertificateError`."""
        if self.tls_ca is None and self.tls_dir is not None:
            return MeshTls.of_any_role(self.tls_dir).credentials_for(role)
        return self.api_tls()


ACCESS_DEFAULTS = AccessOptions()
MESH_SECURITY_DEFAULTS = MeshSecurityOptions()
API_SECURITY_DEFAULTS = ApiSecurityOptions()
CLIENT_SECURITY_DEFAULTS = ClientSecurityOptions()
OPERATOR_SECURITY_DEFAULTS = OperatorSecurityOptions()
