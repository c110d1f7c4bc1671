"""Creates a mesh's private CA and the certificates of its nodes, one pair for each role.

Only this module reads the CA's key. `runtime/rpc/tls.py` verifies the certificates. Existing files
are replaced only by a renewal.
"""

import ipaddress
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from runtime.errors import CertificateError, InvalidRequestError
from runtime.rpc.tls import AUTHORITY_FILE, MEMBER_NAME, Role, check_pair, read_pem

AUTHORITY_KEY_FILE: Final = "ca.key"
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_LIFETIME: Final = timedelta(days=3650)
# The largest difference between clocks of nodes.
_CLOCK_SKEW: Final = timedelta(minutes=5)
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
_HOST_NAME: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """The subject of certificates; `hosts` are the node's host names and addresses."""

    node: str
    roles: tuple[Role, ...]
    hosts: tuple[str, ...]
    lifetime: timedelta

    def check(self) -> None:
        """Raises `InvalidRequestError` for an invalid node or host name."""
        if not _NODE_NAME.fullmatch(self.node):
            problem = f"{self.node!r} is not letters, digits, dots, dashes and underscores"
            raise InvalidRequestError(field="--node", problem=problem)
        for host in self.hosts:
            _general_name(host)


def make_certificates(folder: Path, request: NodeRequest, *, is_renewal: bool) -> list[Path]:
    """Writes `ca.pem` and a pair for each role to `folder`/NODE; returns the written files.

    Creates the CA in `folder` if there is none. Raises `InvalidRequestError` if a file exists,
    cannot be written, or does not exist for a renewal, and `CertificateError` for an unusable CA.
    """
    request.check()
    home = folder / request.node
    try:
        return _make_certificates(folder, home, request, is_renewal)
    except OSError as error:
        path, reason = error.filename or home, error.strerror or str(error)
        problem = f"{reason}; name another folder, or make it writable"
        raise InvalidRequestError(field=str(path), problem=problem) from error


def _make_certificates(
    folder: Path, home: Path, request: NodeRequest, is_renewal: bool
) -> list[Path]:
    for role in request.roles:
        path = home / f"{role}.pem"
        if path.exists() and not is_renewal:
            problem = "it exists; give --renew to replace it, or another --node"
            raise InvalidRequestError(field=str(path), problem=problem)
        if is_renewal and not path.exists():
            problem = "there is none to renew; check the folder, --node and --role, or omit --renew"
            raise InvalidRequestError(field=str(path), problem=problem)
    authority_path, key_path = folder / AUTHORITY_FILE, folder / AUTHORITY_KEY_FILE
    written = []
    if not authority_path.exists() and not key_path.exists():
        _make_authority(authority_path, key_path)
        written += [authority_path, key_path]
    # Like any pair, the CA must be complete and currently valid.
    check_pair(authority_path, key_path)
    authority = x509.load_pem_x509_certificate(read_pem(authority_path))
    key = _load_key(key_path)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(home / AUTHORITY_FILE, read_pem(authority_path), 0o644)
    for role in request.roles:
        written += _make_pair(home, role, request, authority, key)
    return [*written, home / AUTHORITY_FILE]


def _make_authority(certificate_path: Path, key_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stagemesh mesh authority")])
    usage = _key_usage(digital_signature=False, key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(name, name, key.public_key(), _AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(key_path, _key_pem(key), 0o600)
    _write(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _make_pair(
    home: Path,
    role: Role,
    request: NodeRequest,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> list[Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [
        x509.NameAttribute(NameOID.COMMON_NAME, request.node),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
    ]
    names = [x509.DNSName(role.server_name), x509.DNSName(MEMBER_NAME)]
    hosts = [_general_name(host) for host in dict.fromkeys(request.hosts)]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(x509.Name(attributes), authority.subject, key.public_key(), request.lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([*names, *hosts]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    paths = [home / f"{role}.pem", home / f"{role}.key"]
    _write(paths[1], _key_pem(key), 0o600)
    _write(paths[0], certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return paths


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(
    *, digital_signature: bool, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            problem = f"{host!r} is neither a host name nor an address"
            raise InvalidRequestError(field="--host", problem=problem) from None
        return x509.DNSName(host)


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(read_pem(path), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(path=str(path), problem="it is not a key on an elliptic curve")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replaces the file atomically, as processes may read it, and with `mode` from the start."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
