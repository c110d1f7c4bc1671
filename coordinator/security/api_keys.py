"""API keys: names with the hashes of their keys, read from a TOML file.

The file has one table for each name and does not contain the keys:

    [alice]
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    max_in_flight = 8
    tokens_per_minute = 60000

A plain SHA-256 is sufficient, because keys are random and no dictionary attack applies.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Never

from runtime.errors import KeyFileError, UnauthenticatedError
from runtime.host.logs import get_logger

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_LIMITS: Final = ("max_in_flight", "tokens_per_minute")
_KEY_BYTES: Final = 32
_POLL_SECONDS: Final = 1.0

_log = get_logger()


@dataclass(frozen=True, slots=True)
class Tenant:
    """The owner of a key and its limits; None is no limit."""

    name: str
    max_in_flight: int | None = None
    tokens_per_minute: int | None = None


ANONYMOUS: Final = Tenant("")
"""The tenant of all calls at an API without keys."""


class ApiKeys:
    """The keys of one file, which is reread when it changes; without a file, no key is needed."""

    def __init__(self, path: Path | None, defaults: Tenant = ANONYMOUS) -> None:
        """`defaults` has the limits of keys without limits in the file.

        Raises `KeyFileError`.
        """
        self._path = path
        self._defaults = defaults
        self._signature = _signature(path)
        self._tenants = {} if path is None else read_key_file(path, defaults)

    def tenant(self, authorization: str | None) -> Tenant:
        """The tenant of a call, by the value of its header `authorization`.

        Raises `UnauthenticatedError`. Every hash is compared, each in constant time, so that the
        time of a call does not depend on the key.
        """
        if self._path is None:
            return ANONYMOUS
        if not authorization:
            raise UnauthenticatedError(problem="no API key was sent")
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise UnauthenticatedError(problem="the authorization is no Bearer token")
        digest, found = hash_of(key.strip()), None
        for known, tenant in self._tenants.items():
            if hmac.compare_digest(digest, known):
                found = tenant
        if found is None:
            raise UnauthenticatedError(problem="this API key is not known here")
        return found

    async def watch(self) -> Never:
        """Rereads the file when it changes, for ever; an invalid file is ignored."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Reads the file again if it has changed; logs an invalid one and keeps the old keys."""
        signature = _signature(self._path)
        if self._path is None or signature == self._signature:
            return
        self._signature = signature
        try:
            self._tenants = read_key_file(self._path, self._defaults)
        except KeyFileError as error:
            _log.error("api_keys_kept", problem=str(error))
        else:
            _log.info("api_keys_read", num_keys=len(self._tenants))


def hash_of(key: str) -> str:
    """The hash that the file contains, in hexadecimal digits."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def new_key() -> str:
    """A random key."""
    return f"sm-{secrets.token_urlsafe(_KEY_BYTES)}"


def read_key_file(path: Path, defaults: Tenant = ANONYMOUS) -> dict[str, Tenant]:
    """The tenants by the hashes of their keys; raises `KeyFileError`."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        hint = f"stagemesh keys add NAME --api-keys {path} makes one"
        raise KeyFileError(path=str(path), problem=f"there is no such file; {hint}") from error
    except OSError as error:
        unread = f"it cannot be read: {error.strerror}; name a file"
        raise KeyFileError(path=str(path), problem=unread) from error
    except ValueError as error:
        raise KeyFileError(path=str(path), problem=f"it is not TOML: {error}") from error
    tenants: dict[str, Tenant] = {}
    for name, table in tables.items():
        problem = _problem(name, table)
        if problem is None and table["sha256"] in tenants:
            problem = f"[{name}] has the key of [{tenants[table['sha256']].name}]"
        if problem is not None:
            raise KeyFileError(path=str(path), problem=problem)
        limits = {limit: table.get(limit, getattr(defaults, limit)) for limit in _LIMITS}
        tenants[table["sha256"]] = Tenant(name, **limits)
    return tenants


def add_key(path: Path, tenant: Tenant) -> str:
    """Appends a new key to the file, which is created if it is missing; returns the key.

    Raises `KeyFileError`, also for a name that is taken.
    """
    if not _NAME.fullmatch(tenant.name):
        raise KeyFileError(path=str(path), problem=_bad_name(tenant.name))
    names = {each.name for each in read_key_file(path).values()} if path.exists() else set()
    if tenant.name in names:
        problem = f"[{tenant.name}] is there already; choose another name, or delete its lines"
        raise KeyFileError(path=str(path), problem=problem)
    key = new_key()
    lines = [f"[{tenant.name}]", f'sha256 = "{hash_of(key)}"']
    lines += [f"{limit} = {getattr(tenant, limit)}" for limit in _LIMITS if getattr(tenant, limit)]
    try:
        path.touch(mode=0o600)
        # A file edited by hand may lack the final newline.
        is_open_ended = bool(names) and not path.read_text().endswith("\n")
        with path.open("a") as file:
            file.write("\n" * is_open_ended + "\n".join(lines) + "\n\n")
    except OSError as error:
        problem = f"it cannot be written: {error.strerror}; name a file in a folder that is there"
        raise KeyFileError(path=str(path), problem=problem) from error
    return key


def _problem(name: str, table: object) -> str | None:
    """The problem of one entry of the file, None if it is valid."""
    if not _NAME.fullmatch(name):
        return _bad_name(name)
    if not isinstance(table, Mapping):
        return f"{name} must be a table, as [{name}] with lines below it"
    if not isinstance(digest := table.get("sha256"), str) or not _HASH.fullmatch(digest):
        return f"[{name}] needs sha256, the 64 hexadecimal digits of its key's hash"
    if unknown := sorted(table.keys() - {"sha256", *_LIMITS}):
        return f"[{name}] has {unknown[0]!r}, which is none of sha256, {', '.join(_LIMITS)}"
    for limit in _LIMITS:
        value = table.get(limit, 1)
        if type(value) is not int or value < 1:
            return f"[{name}] {limit} must be a whole number from 1 up"
    return None


def _bad_name(name: str) -> str:
    return f"{name[:64]!r} is no name of a key; use letters, digits, - and _, 64 at most"


def _signature(path: Path | None) -> tuple[int, ...]:
    """Changes when the file does; empty where the file is missing."""
    if path is None:
        return ()
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
