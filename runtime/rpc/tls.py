"""Certificates of the mesh's links: a process's own, and the role required of its peers.

Links are TLS 1.2 or later with certificates of the mesh's own authority on both ends. What a
certificate proves is a role, written into it as a name (`worker.stagemesh.internal`): a client
requires the role of its server, and a server checks the role of its client
(`runtime/rpc/peer_authorization.py`).
A process's folder holds `ca.pem`, and ROLE.pem and ROLE.key for each role that its node plays;
`stagemesh certs` makes it. APIs for clients are ordinary TLS servers.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import grpc

from runtime.addresses import is_loopback
from runtime.errors import CertificateError, InsecureMeshError
from runtime.rpc.channels import ChannelTls

if TYPE_CHECKING:
    from collections.abc import Callable

AUTHORITY_FILE: Final = "ca.pem"
_CERTIFICATE_BEGINS: Final = b"-----BEGIN CERTIFICATE-----"
# `.internal` is reserved for private networks.
_DOMAIN: Final = "stagemesh.internal"


class Role(StrEnum):
    """The role that a certificate proves; a client is an operator's command."""

    COORDINATOR = "coordinator"
    WORKER = "worker"
    CLIENT = "client"

    @property
    def server_name(self) -> str:
        """The DNS name in the certificate that proves the role."""
        return f"{self}.{_DOMAIN}"


# In every certificate of the mesh: required where any role is accepted.
MEMBER_NAME: Final = f"member.{_DOMAIN}"


@dataclass(frozen=True, slots=True)
class MeshTls:
    """One process's side of the mesh's TLS, with the certificate of `role` in `folder`.

    Files are read at each connection, so that renewed ones take effect without a restart.
    """

    folder: Path
    role: Role

    @classmethod
    def open(cls, folder: Path, role: Role) -> "MeshTls":
        """Raises `CertificateError` for files that are missing, expired or of another role."""
        tls = cls(folder, role)
        tls._check()
        return tls

    @classmethod
    def of_any_role(cls, folder: Path) -> "MeshTls":
        """Opens the certificate of a command: of a client, or of the node's other role."""
        roles = (Role.CLIENT, Role.COORDINATOR, Role.WORKER)
        held = (role for role in roles if (folder / f"{role}.pem").exists())
        return cls.open(folder, next(held, Role.CLIENT))

    def credentials_for(self, role: Role | None) -> ChannelTls:
        """The credentials for dialling a process of `role`; None: of any role."""
        authority, certificate, key = self._read()
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        return ChannelTls(credentials, role.server_name if role else MEMBER_NAME)

    def server_credentials(self) -> grpc.ServerCredentials:
        """The credentials of a listener that requires a certificate of the mesh."""
        seen = self._changed_at()

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Called at each handshake; returns the certificate if its files have changed."""
            nonlocal seen
            changed_at = self._changed_at()
            if changed_at == seen:
                return None
            seen = changed_at
            return self._configuration()

        # The stubs require a result; gRPC's documented contract allows None.
        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)
        return grpc.dynamic_ssl_server_credentials(self._configuration(), fetch, True)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        authority, certificate, key = self._read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    @property
    def _files(self) -> tuple[Path, Path, Path]:
        names = (AUTHORITY_FILE, f"{self.role}.pem", f"{self.role}.key")
        authority, certificate, key = (self.folder / name for name in names)
        return authority, certificate, key

    def _read(self) -> tuple[bytes, bytes, bytes]:
        authority, certificate, key = map(read_pem, self._files)
        return authority, certificate, key

    def _changed_at(self) -> tuple[float, ...]:
        return tuple(path.stat().st_mtime for path in self._files)

    def _check(self) -> None:
        _, certificate, key = self._files
        names = check_pair(certificate, key)
        read_pem(self.folder / AUTHORITY_FILE)
        if self.role.server_name not in names:
            raise CertificateError(path=str(certificate), problem=f"it is not a {self.role}'s")


@dataclass(frozen=True, slots=True)
class DialPolicy:
    """The addresses that links may use: without `tls` loopback only, unless `is_insecure`."""

    tls: MeshTls | None = None
    is_insecure: bool = False

    def includes(self, address: str) -> bool:
        """Whether HOST:PORT may be listened on or dialled."""
        return self.tls is not None or self.is_insecure or is_loopback(address)


@dataclass(frozen=True, slots=True)
class ApiTls:
    """The certificate chain and key of the APIs for clients."""

    certificate: Path
    key: Path

    @classmethod
    def open(cls, certificate: Path, key: Path) -> "ApiTls":
        """Raises `CertificateError` for files that are missing, expired or do not match."""
        check_pair(certificate, key)
        return cls(certificate, key)

    def server_credentials(self) -> grpc.ServerCredentials:
        """The credentials of the gRPC API; callers need no certificate."""
        return grpc.ssl_server_credentials([(read_pem(self.key), read_pem(self.certificate))])


def trusting(authority: Path) -> ChannelTls:
    """The credentials for dialling a TLS API whose certificate `authority` has signed.

    Raises `CertificateError`.
    """
    pem = read_pem(authority)
    if _CERTIFICATE_BEGINS not in pem:
        raise CertificateError(path=str(authority), problem="there is no certificate in it")
    return ChannelTls(grpc.ssl_channel_credentials(pem))


def check_mesh_address(address: str, option: str, tls: MeshTls | None, is_insecure: bool) -> None:
    """Raises `InsecureMeshError` for an address beyond loopback without TLS, unless permitted."""
    if not DialPolicy(tls, is_insecure).includes(address):
        raise InsecureMeshError(option=option, address=address)


def read_pem(path: Path) -> bytes:
    """The file's bytes; raises `CertificateError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(path=str(path), problem=error.strerror or str(error)) from error


def check_pair(certificate: Path, key: Path) -> list[str]:
    """The DNS names of a valid certificate that matches `key`.

    Raises `CertificateError`.
    """
    # Imported here: a process without TLS does not load a second copy of OpenSSL.
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = certificate
    try:
        parsed = x509.load_pem_x509_certificate(read_pem(certificate))
        path = key
        private = load_pem_private_key(read_pem(key), password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(path=str(path), problem=f"it cannot be read: {error}") from error
    if private.public_key() != parsed.public_key():
        raise CertificateError(path=str(key), problem=f"it is not the key of {certificate.name}")
    now = datetime.now(UTC)
    if now > parsed.not_valid_after_utc:
        ended = f"it expired at {parsed.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise CertificateError(path=str(certificate), problem=ended)
    if now < parsed.not_valid_before_utc:
        begins = f"it begins at {parsed.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; check the clock"
        raise CertificateError(path=str(certificate), problem=begins)
    try:
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)
