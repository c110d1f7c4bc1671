"""The record that ranks exchange before every step, whatever else they exchange data with.

A rank that refuses its step, or was sent another one, is known to all before any of them enters a
collective, so none waits there for one that does not come.
"""

import hashlib

from runtime.errors import HeaderMismatchError, StagemeshError
from runtime.protocol.step import Step
from stage_worker.collectives.rank_status import RankStatus
from stage_worker.collectives.shared_memory_segment import SharedBlock

_DIGEST_BYTES = 16


def agree(block: SharedBlock, step: Step, refusal: StagemeshError | None) -> None:
    """Shows a digest of the whole step, or the refusal, and compares all ranks'.

    Raises as `RankGroup.agree` says.
    """
    if refusal is not None:
        block.show_record(RankStatus.of_error(refusal))
        raise refusal
    digest = hashlib.blake2b(repr(step).encode(), digest_size=_DIGEST_BYTES).digest()
    records = block.exchange_records(RankStatus(step.number, digest))
    for rank, record in enumerate(records):
        if record.code:
            raise record.end(rank)
    for rank, record in enumerate(records):
        if record != records[0]:
            raise HeaderMismatchError(rank=rank, expected=_told(records[0]), actual=_told(record))


def _told(record: RankStatus) -> str:
    return f"step {record.step} with digest {record.digest.hex()}"
