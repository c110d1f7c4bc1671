"""What a rank tells the others of its stage besides tensors: which step it has, or why it ends."""

import struct
from dataclasses import dataclass

from runtime.errors import EpochEndedError, StagemeshError

_LAYOUT = struct.Struct("<Q16s64s936s")
RECORD_BYTES = _LAYOUT.size


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank says: about a step (its number and digest), or, with a `code`, why it ends."""

    step: int
    digest: bytes
    code: str = ""
    detail: str = ""

    @classmethod
    def of_error(cls, error: StagemeshError) -> "RankStatus":
        """The record that `end` turns into an error again."""
        end = EpochEndedError.by(error)
        return cls(0, b"", end.cause, end.detail)

    def pack(self) -> bytes:
        """Texts that are too long are cut."""
        return _LAYOUT.pack(
            self.step, self.digest, self.code.encode()[:64], self.detail.encode()[:936]
        )

    @classmethod
    def unpack(cls, data: bytes) -> "RankStatus":
        """What `pack` has packed."""
        step, digest, code, detail = _LAYOUT.unpack(data)
        code, detail = (text.rstrip(b"\0").decode(errors="ignore") for text in (code, detail))
        return cls(step, digest, code, detail)

    def end(self, rank: int) -> EpochEndedError:
        """What the other ranks raise when `rank` says this."""
        return EpochEndedError(cause=self.code, detail=f"rank {rank}: {self.detail}")
