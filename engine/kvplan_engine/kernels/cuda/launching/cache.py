"""Compiled CUDA kernels on disk: one file per source, options, compiler and architecture, valid whenever it exists."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

from kvplan_engine.kernels.cuda.launching.nvrtc import CompiledKernel, Nvrtc
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, source_digest
from kvplan_engine.paths import kernel_cache_dir

logger = logging.getLogger("kvplan_engine")


def cached_image(variant: KernelVariant, nvrtc: Nvrtc, architecture: str, folder: Path | None = None) -> bytes:
    """The compiled ``variant``, from the cache, or compiled and stored there.

    Two processes may compile the same kernel at once: the files are equal, and each appears atomically. If the cache
    cannot be written, the next start compiles again.
    """
    path = image_path(variant, nvrtc, architecture, folder)
    if path.is_file():
        return path.read_bytes()
    compiled = nvrtc.compile(variant, architecture)
    _report_warnings(variant, compiled)
    try:
        _store(path, compiled.image)
    except OSError:
        return compiled.image
    return compiled.image


def image_path(variant: KernelVariant, nvrtc: Nvrtc, architecture: str, folder: Path | None = None) -> Path:
    """Where the compiled ``variant`` is stored."""
    return (folder or kernel_cache_dir() / "cuda") / f"{image_key(variant, nvrtc.version, architecture)}.bin"


def image_key(variant: KernelVariant, nvrtc_version: tuple[int, int], architecture: str) -> str:
    """Hash of everything that decides the compiler's output."""
    parts = (variant.source, *variant.flags(), architecture, str(nvrtc_version), source_digest(variant.source))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _report_warnings(variant: KernelVariant, compiled: CompiledKernel) -> None:
    """Log a warning of the compiler, which newer versions may add; the kernel is correct all the same."""
    if compiled.warnings:
        logger.warning("%s compiles with a warning: %s", variant.label(), compiled.warnings[0])


def _store(path: Path, image: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(image)
    Path(name).replace(path)
