"""Kernels compiled ahead, in processes of their own, by an NVRTC that needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from precompile import precompile

from kvplan_engine.kernels.cuda.launching.nvrtc import cached_image, load_nvrtc
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant


@pytest.mark.slow
def test_what_was_compiled_ahead_is_found_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    try:
        nvrtc = load_nvrtc()
    except CudaKernelError:
        pytest.skip("no NVRTC on this machine: pip install nvidia-cuda-nvrtc-cu12")
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path))
    variants = [
        KernelVariant("attention/plan/plan.cu", "plan_attention"),
        KernelVariant("attention/cache/copy_blocks.cu", "copy_blocks"),
    ]
    precompile([*variants, variants[0]], "sm_90")
    assert len(list(tmp_path.rglob("*.bin"))) == 2

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(nvrtc, "compile", refuse)
    precompile(variants, "sm_90")  # starts no process
    assert all(cached_image(variant, nvrtc, "sm_90").startswith(b"\x7fELF") for variant in variants)
