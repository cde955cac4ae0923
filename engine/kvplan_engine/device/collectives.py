"""What the ranks of an engine do together: sums and gathered rows, over gloo on the CPU and NCCL on GPUs.

Each engine has a process group of its own, not torch's global one: a process may have several engines.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from kvplan_engine.description.division import Rank

_HOST = "127.0.0.1"
_TAG = 0
# Not how long a rank may be dead: that closes its connections, which fails every collective at once. A rank that is
# alive may be slow for as long as it takes to load weights.
_PATIENCE = timedelta(hours=1)


class Collectives:
    """The collectives of ``rank``: all ranks call the same ones in the same order. RuntimeError where one is lost.

    store: where they meet, see ``open_store``.
    """

    def __init__(self, rank: Rank, store: torch.distributed.Store, *, on_gpu: bool = False) -> None:
        self.rank = rank
        # typed so because torch's stubs do not say that both have the same collectives
        make: Any = torch.distributed.ProcessGroupNCCL if on_gpu else torch.distributed.ProcessGroupGloo
        own = torch.distributed.PrefixStore(f"stage {rank.stage}", store)
        self._group: Any = make(own, rank.index, rank.count, _PATIENCE) if rank.count > 1 else None
        num_ranks = rank.count * rank.num_stages
        self._all: Any = self._group
        if rank.num_stages > 1:
            self._all = make(torch.distributed.PrefixStore("all", store), rank.number, num_ranks, _PATIENCE)

    # ---- of the ranks that share a stage

    def sum_inplace(self, x: torch.Tensor) -> None:
        """``x``, which is contiguous, becomes the sum of all ranks' on each of them, to the same bits."""
        self._group.allreduce([x]).wait()

    def gather(self, own: torch.Tensor, shards: torch.Tensor) -> None:
        """``shards`` [ranks, *own.shape] on the stage's first rank: every rank's ``own``. Both are contiguous."""
        options = torch.distributed.GatherOptions()
        options.rootRank = 0
        is_first = self.rank.index == 0
        self._group.gather([list(shards.unbind())] if is_first else [], [own], options).wait()

    # ---- of all ranks

    def send_to_all(self, x: torch.Tensor) -> None:
        """``x`` of the first rank into that of the others."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._all.broadcast([x], options).wait()

    def send_to_next_stage(self, x: torch.Tensor) -> None:
        """``x``, which is contiguous, to the rank of the same part of the next stage."""
        self._all.send([x], self.rank.number + self.rank.count, _TAG).wait()

    def receive_from_last_stage(self, x: torch.Tensor) -> None:
        """Into ``x`` what the stage before sends."""
        self._all.recv([x], self.rank.number - self.rank.count, _TAG).wait()

    def bring_to_first(self, x: torch.Tensor) -> None:
        """``x`` of the last stage's first rank into that of the first of all ranks; the others do nothing."""
        last = self.rank.count * (self.rank.num_stages - 1)
        if self.rank.number == last and last:
            self._all.send([x], 0, _TAG).wait()
        elif self.rank.number == 0 and last:
            self._all.recv([x], last, _TAG).wait()


def open_store(num_ranks: int) -> torch.distributed.TCPStore:
    """The meeting point of so many ranks, on a free port of the loopback interface (``port`` of it)."""
    return torch.distributed.TCPStore(_HOST, 0, num_ranks, is_master=True, wait_for_workers=False, timeout=_PATIENCE)


def join_store(port: int, num_ranks: int) -> torch.distributed.TCPStore:
    """The meeting point that the first rank has opened on ``port``."""
    return torch.distributed.TCPStore(_HOST, port, num_ranks, is_master=False, timeout=_PATIENCE)


def is_lost(error: RuntimeError) -> bool:
    """Whether a collective failed with ``error`` because another rank has ended."""
    text = str(error).lower()
    return any(words in text for words in ("connection", "gloo", "nccl", "timed out"))
