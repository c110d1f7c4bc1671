"""A file with the API keys of two tenants, and how a client shows one at either API."""

from pathlib import Path

from coordinator.security.api_keys import Tenant, add_key

BODY = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}


class Keys:
    """A file with the keys of two tenants."""

    def __init__(self, folder: Path, **limits: int) -> None:
        self.path = folder / "keys.toml"
        self.alice = add_key(self.path, Tenant("alice", **limits))
        self.bob = add_key(self.path, Tenant("bob"))


def bearer(key: str) -> dict[str, str]:
    """A key as HTTP shows it."""
    return {"authorization": f"Bearer {key}"}


def metadata(key: str) -> tuple[tuple[str, str], ...]:
    """A key as gRPC shows it."""
    return (("authorization", f"Bearer {key}"),)
