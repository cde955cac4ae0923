"""One rank of several in a process of its own: what the others would say is answered here.

PyTorch's fake process group moves nothing. vLLM's own communicators are made on it: NCCL's functions return at once,
and the all-reduce of one node gets buffers of its own in the place of its peers'. What is exchanged on the host while
they are set up is what this rank would say itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import ParallelConfig
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators import pynccl, shm_broadcast
from vllm.distributed.device_communicators.pynccl_wrapper import ncclUniqueId
from vllm.v1.executor import multiproc_executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor


class _Nccl:
    """NCCL's library as ``NCCLLibrary`` presents it."""

    def __init__(self, *_: Any) -> None:
        self.ncclGetUniqueId = ncclUniqueId

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0


def be_one_of(rank: int) -> None:
    """Let vLLM's executor of several processes start rank ``rank`` alone, in this process."""
    make_world, make_group = torch.distributed.init_process_group, torch.distributed.new_group

    def init_process_group(*_: Any, world_size: int, rank: int, **__: Any) -> None:
        make_world("fake", store=FakeStore(), world_size=world_size, rank=rank)

    def all_gather_object(found: list[Any], mine: Any, *_: Any, **__: Any) -> None:
        found[:] = [mine] * len(found)

    said: list[Any] = []  # what this rank sent last stands for what others send

    def broadcast_object_list(objects: list[Any], src: int = 0, *_: Any, **__: Any) -> None:
        if src == rank:
            said[:] = objects
        elif len(said) == len(objects):
            objects[:] = said

    def all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None, *_: Any, **__: Any) -> None:
        # groups of data-parallel ranks add up tables in which each fills its own column
        if group is not None and tensor.device.type == "cpu" and tensor.shape[-1:] == (group.size(),):
            tensor[:] = tensor[..., group.rank(), None].clone()

    torch.distributed.all_reduce = all_reduce
    ParallelConfig.stateless_init_dp_group = lambda *_, **__: None
    torch.distributed.init_process_group = init_process_group
    torch.distributed.new_group = lambda ranks=None, **_: make_group(ranks, backend="fake")
    torch.distributed.all_gather_object = all_gather_object
    torch.distributed.broadcast_object_list = broadcast_object_list
    parallel_state.in_the_same_node_as = lambda group, source_rank=0: [True] * group.size()
    pynccl.NCCLLibrary = _Nccl
    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)

    class OneRank(UniProcExecutor):
        supports_pp = True

        def _distributed_args(self) -> tuple[str, int, int]:
            return super()._distributed_args()[0], rank, 0

    multiproc_executor.MultiprocExecutor = OneRank
