"""Settings to paste for a tier of a size: vLLM's own offloading, LMCache, SGLang's HiCache.

vLLM     ``--kv-offloading-size`` is in GiB and of all tensor-parallel ranks of one engine (vllm/config/cache.py);
         drives are a secondary tier, which never deletes (vllm/v1/kv_offload/tiering/spec.py, fs/manager.py; 0.33)
LMCache  ``max_local_cpu_size`` and ``max_local_disk_size`` are in units of 1024**3 bytes, of each rank's process
         (lmcache/v1/cache_engine.py, _Create_memory_allocator; docs.lmcache.ai, configurations)
SGLang   ``--hicache-size`` is in units of 1e9 bytes and of each rank, and must exceed the rank's own pool
         (sglang/srt/mem_cache/memory_pool_host.py, HostKVCache)
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvplan.fleet.tiers.question import LayoutAnswer
from kvplan.units import GIB

DRIVE: Final = "/mnt/nvme/kv"
"""Stands for the folder on the drives."""


@dataclass(frozen=True, slots=True)
class SettingLines:
    """Lines to paste for an engine. note: what else has to be known, or None."""

    engine: str
    lines: tuple[str, ...]
    note: str | None = None


def setting_lines(answer: LayoutAnswer, model: str, *, is_shared: bool = False) -> Sequence[SettingLines]:
    """Return the lines for the size that was asked for, or is proposed."""
    host = answer.asked.size_bytes
    nvme = None if answer.asked_nvme is None else answer.asked_nvme.size_bytes
    if is_shared:
        note = f"LMCache's server holds {_plain(host / GIB)} GiB; its size is set there"
        return (SettingLines("vLLM", ("--kv-offloading-size 1 --kv-offloading-backend lmcache",), note),)
    return (_vllm(answer, model, host, nvme), _lmcache(answer, host, nvme), _sglang(answer, host, model))


def _vllm(answer: LayoutAnswer, model: str, host: int, nvme: int | None) -> SettingLines:
    layout = answer.curve.layout
    ranks = f" --tensor-parallel-size {layout.num_ranks}" if layout.num_ranks > 1 else ""
    launch = f"vllm serve {model}{ranks}"
    if nvme is None:
        line = f"{launch} --kv-offloading-size {_plain(host / GIB)} --kv-offloading-backend native"
        return SettingLines("vLLM", (line,))
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": host,
        "secondary_tiers": [{"type": "fs", "root_dir": DRIVE}],
    }
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    note = f"vLLM never deletes files there: bound {DRIVE} from outside"
    return SettingLines("vLLM", (f"{launch} --kv-transfer-config '{json.dumps(config)}'",), note)


def _lmcache(answer: LayoutAnswer, host: int, nvme: int | None) -> SettingLines:
    ranks = answer.curve.layout.num_ranks
    lines = ["chunk_size: 256", "local_cpu: true", f"max_local_cpu_size: {_plain(_of_rank(host, ranks, GIB))}"]
    if nvme is not None:
        lines += [f'local_disk: "file://{DRIVE}/"', f"max_local_disk_size: {_plain(_of_rank(nvme, ranks, GIB))}"]
    note = "in the file of LMCACHE_CONFIG_FILE"
    return SettingLines("LMCache", tuple(lines), f"{note}, for each of {ranks} ranks" if ranks > 1 else note)


def _sglang(answer: LayoutAnswer, host: int, model: str) -> SettingLines:
    layout = answer.curve.layout
    ranks = layout.num_ranks
    each = math.floor(host / ranks / 1e9)
    pool = layout.pool_bytes / ranks / 1e9
    line = f"--enable-hierarchical-cache --hicache-size {each} --hicache-write-policy write_through"
    if each <= pool:
        return SettingLines("SGLang", (line,), f"refused: smaller than a rank's own pool, about {pool:,.0f} GB")
    per_rank = f", for each of {ranks} ranks" if ranks > 1 else ""
    launch = f"python -m sglang.launch_server --model-path {model}{f' --tp {ranks}' if ranks > 1 else ''}"
    return SettingLines("SGLang", (f"{launch} {line}",), f"in GB{per_rank}; the curve is of vLLM's blocks")


def _of_rank(num_bytes: int, ranks: int, unit: int) -> float:
    return num_bytes / ranks / unit


def _plain(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
