"""What the ranks of an engine do together: sums and gathered rows, over gloo on the CPU and NCCL on GPUs.

Each engine has a process group of its own, not torch's global one: a process may have several engines.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from kvplan_engine.description.division import Rank
from kvplan_engine.device.allocation import is_out_of_memory
from kvplan_engine.kernels.cuda.all_reduce import OneShotAllReduce

_LOOPBACK = "127.0.0.1"
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
        make = _nccl if on_gpu else _gloo
        own = torch.distributed.PrefixStore(f"stage {rank.stage}", store)
        self._group: Any = make(own, rank.index, rank.count) if rank.count > 1 else None
        num_ranks = rank.count * rank.num_stages
        self._all: Any = self._group
        self._custom: OneShotAllReduce | None = None
        if rank.num_stages > 1:
            self._all = make(torch.distributed.PrefixStore("all", store), rank.number, num_ranks)

    def abort(self) -> None:
        """End all collectives under way on a GPU, from any thread. No others can follow."""
        if self._custom is not None:
            self._custom.give_up()
        for group in {id(each): each for each in (self._group, self._all) if each is not None}.values():
            group.abort()

    # ---- of the ranks that share a stage

    def sum_inplace(self, x: torch.Tensor) -> None:
        """``x``, which is contiguous, becomes the sum of all ranks' on each of them, to the same bits."""
        if self._custom is not None and self._custom.takes(x):
            self._custom(x)
        else:
            self._group.allreduce([x]).wait()

    def use_custom(self, all_reduce: OneShotAllReduce | None) -> None:
        """Let it make the sums that it takes from now on; None: let NCCL make all."""
        self._custom = all_reduce

    def all_of(self, own: bytes, device: torch.device) -> list[bytes]:
        """The bytes of all ranks, as many of each, by way of tensors on ``device``."""
        sent = torch.frombuffer(bytearray(own), dtype=torch.uint8).to(device)
        found = [torch.empty_like(sent) for _ in range(self.rank.count)]
        self._group.allgather([found], [sent]).wait()
        return [bytes(each.tolist()) for each in found]

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


# torch's stubs do not say that both kinds of group have the same collectives
def _nccl(store: torch.distributed.Store, number: int, count: int) -> Any:
    return torch.distributed.ProcessGroupNCCL(store, number, count, _PATIENCE)  # type: ignore[arg-type]


def _gloo(store: torch.distributed.Store, number: int, count: int) -> Any:
    """Over the loopback interface: the default would listen where the host's name leads to."""
    gloo: Any = torch.distributed.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = _PATIENCE
    options._devices = [gloo.create_device(hostname=_LOOPBACK)]
    return gloo(store, number, count, options)


def open_store(path: str, num_ranks: int) -> torch.distributed.FileStore:
    """Where so many ranks find each other: a file, the same for all of them, that nobody else may write."""
    return torch.distributed.FileStore(path, num_ranks)


def is_lost(error: RuntimeError) -> bool:
    """Whether a collective failed with ``error`` because another rank has ended, not for want of memory."""
    if is_out_of_memory(error):
        return False
    text = str(error).lower()
    return any(words in text for words in ("connection", "gloo", "nccl", "timed out"))
