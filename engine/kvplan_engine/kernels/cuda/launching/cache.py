"""Compiled CUDA kernels on disk: one file per source, options, compiler and architecture, valid whenever it exists."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvplan_engine.kernels.cache_folders import UnusableFolder, kernel_folders, make_usable
from kvplan_engine.kernels.cuda.launching.nvrtc import CompiledKernel, Nvrtc
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant, source_digest
from kvplan_engine.paths import kernel_cache_dir

logger = logging.getLogger("kvplan_engine")


def cached_image(variant: KernelVariant, nvrtc: Nvrtc, architecture: str, folder: Path | None = None) -> bytes:
    """The compiled ``variant``, from the cache, or compiled and stored there.

    Two processes may compile the same kernel at once: the files are equal, and each appears atomically. If the cache
    cannot be written, a temporary folder is used; if there is none either, the next start compiles again.
    """
    name = f"{image_key(variant, nvrtc.version, architecture)}.bin"
    place: Path | None = None
    for path in [folder / name] if folder is not None else _cached_paths(name):
        if path.is_file():
            return path.read_bytes()
        if _can_be_written(path.parent):
            place = path
            break
    compiled = nvrtc.compile(variant, architecture)
    _report_warnings(variant, compiled)
    if place is not None:
        with contextlib.suppress(OSError):  # a full disk
            _store(place, compiled.image)
    return compiled.image


def _cached_paths(name: str) -> Iterator[Path]:
    """Where the file of this name may lie: only where nobody else could have put it, see ``cache_folders``."""
    for folder in kernel_folders():
        with contextlib.suppress(UnusableFolder):
            make_usable(folder, is_for_libraries=False)
            yield folder / "cuda" / name


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


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
