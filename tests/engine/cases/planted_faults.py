"""Kernels broken on purpose: one line of a source is changed before it is compiled for the emulation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fake_gpu import RecordingRuntime

from kvplan_engine import EngineConfig
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.kernel_checks.use import KernelUse, use_of
from kvplan_engine.kernels.cuda.launching.runtime import Kernel
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.paths import source_dir

_TABLE: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "planted_faults.json").read_text("utf-8"))
_FORMATS = {"int4": WeightFormat(4, 128, 4, has_minimums=True), "fp8_blocks": WeightFormat(8, 128, 4)}
LLAMA, GPT2 = _TABLE["models"]["llama"], _TABLE["models"]["gpt2"]


@dataclass(frozen=True)
class Fault:
    """``old`` of ``source`` (below csrc/cuda) becomes ``new``. families: that are wrong then in a model that has them.

    model: by its name in the table; cache: its kv_cache_dtype; formats: of its weights.
    """

    name: str
    source: str
    old: str
    new: str
    families: tuple[str, ...]
    model: str = "llama"
    cache: str = "auto"
    formats: tuple[str, ...] = ()
    has_adapters: bool = False
    num_ranks: int = 1

    def __str__(self) -> str:
        return self.name

    def use(self) -> KernelUse:
        """What the fault's model could use."""
        config = _TABLE["models"][self.model]
        settings = EngineConfig(
            model=config, load_format="dummy", kv_cache_dtype=self.cache, enable_lora=self.has_adapters
        )
        formats = tuple(_FORMATS[name] for name in self.formats)
        use = use_of(read_config(config), settings, "bfloat16", formats)
        return replace(use, num_ranks=self.num_ranks)


FAULTS = tuple(Fault(**row) for row in _TABLE["faults"])


class FaultyRuntime(RecordingRuntime):
    """The emulation over sources of which some are faulty. folder: for these."""

    def __init__(self, faults: Sequence[Fault], folder: Path) -> None:
        super().__init__()
        for part in ("cuda", "cuda_host"):
            shutil.copytree(source_dir() / part, folder / part, dirs_exist_ok=True)
        self._patched = {fault.source: folder / "cuda" / fault.source for fault in faults}
        for fault in faults:
            path = self._patched[fault.source]
            text = path.read_text(encoding="utf-8")
            assert text.count(fault.old) == 1, f"{fault.source} has no longer what {fault.name!r} changes"
            path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")

    def kernel(self, variant: KernelVariant) -> Kernel:
        """As ever, from the changed source where there is one."""
        changed = self._patched.get(variant.source)
        return super().kernel(variant if changed is None else replace(variant, source=str(changed)))
