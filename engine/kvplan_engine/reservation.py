"""How many blocks a sequence holds: room for the tokens it has, or at once for all it may ever have. No torch.

Apart because both who runs on (``scheduler``) and who comes in (``admission``) take blocks by the same rule.
"""

from __future__ import annotations

from kvplan_engine.offload.transfers import TransferLog
from kvplan_engine.request import Sequence
from kvplan_engine.running import RunningSequences


class Reservation:
    """Takes the blocks that the next tokens of a sequence are written to.

    reserves_all: contiguous reservation, where a sequence gets room for ``max_model_len`` tokens when it enters.
    A shared block that would be written is replaced by a copy, which goes to ``log``.
    """

    def __init__(self, running: RunningSequences, log: TransferLog, *, max_model_len: int, reserves_all: bool) -> None:
        self.reserves_all = reserves_all
        self._running = running
        self._log = log
        self._max_model_len = max_model_len

    def num_tokens_held(self, num_tokens: int) -> int:
        """How many tokens a sequence of ``num_tokens`` holds room for."""
        return self._max_model_len if self.reserves_all else num_tokens

    def take(self, sequence: Sequence, num_new_tokens: int) -> None:
        """Blocks for the next ``num_new_tokens`` of ``sequence``. NoFreeBlocks when the pool has too few."""
        first = sequence.num_computed_tokens
        copy = sequence.table.reserve(first, self.num_tokens_held(first + num_new_tokens))
        self._running.own_tail(sequence)
        if copy is not None:
            self._log.add(copy)
