"""Compiles CUDA sources to binaries with NVRTC, which comes with torch's CUDA packages, and keeps them on disk.

Neither a toolkit nor a host compiler is needed. The sources include no CUDA header, so any NVRTC from 12.0 on will do.
NVRTC 12.x knows compute capability 7.0 (Volta); 13.x begins at 7.5.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvplan_engine.kernels.cache_folders import UnusableFolder, kernel_folders, make_usable
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, source_digest
from kvplan_engine.paths import kernel_cache_dir, source_dir

_SUCCESS = 0
# Lines that NVRTC and ptxas always write, and the deprecation notice for Volta: everything else in a log is a warning.
_HARMLESS = ("ptxas info", "ptxas         .", "Architectures prior to")
_SYSTEMS_ON_A_CHIP = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)})
"""Capabilities whose binaries run on no newer device of their family (NVIDIA's guide to compatibility)."""
_PLAIN_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_SLOW = "Potential Performance Loss"  # an "info" too: products of warp groups one by one, registers that stay


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """``image`` is a cubin for ``architecture`` (sm_90), or PTX when that starts with compute_."""

    image: bytes
    architecture: str
    log: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """Lines of the log that are neither statistics nor a deprecation notice."""
        lines = (line.strip() for line in self.log.replace("\0", "").splitlines())
        return tuple(
            line for line in lines if line and (_SLOW in line or not any(known in line for known in _HARMLESS))
        )


class Nvrtc:
    """One loaded libnvrtc."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self.path = path
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = (major.value, minor.value)

    def supported_capabilities(self) -> tuple[tuple[int, int], ...]:
        """Compute capabilities that this NVRTC compiles for, ascending."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
        values = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(values), "nvrtcGetSupportedArchs")
        return tuple(sorted(divmod(value, 10) for value in values))

    def architecture_for(self, capability: tuple[int, int]) -> str:
        """What to compile for: the device's own architecture, an older one of its family, or PTX of the newest.

        CudaKernelError when the device is older than all that this NVRTC knows.
        """
        supported = [
            known for known in self.supported_capabilities() if known == capability or known not in _SYSTEMS_ON_A_CHIP
        ]
        family = [known for known in supported if known[0] == capability[0] and known <= capability]
        if family:
            return "sm_{}{}".format(*family[-1])
        older = [known for known in supported if known < capability]
        if older:
            return "compute_{}{}".format(*older[-1])
        raise CudaKernelError(
            f"NVRTC {self.version[0]}.{self.version[1]} does not compile for compute capability "
            f"{capability[0]}.{capability[1]}",
            hint="install a torch built for CUDA 12, whose NVRTC does" if capability >= (7, 0) else None,
        )

    def compile(self, variant: KernelVariant, architecture: str, extra_options: tuple[str, ...] = ()) -> CompiledKernel:
        """Compile ``variant``. CudaKernelError with the first lines of the log when that fails."""
        path = source_dir() / "cuda" / variant.source
        source = path.read_bytes()
        program = ctypes.c_void_p()
        name = variant.source.encode()
        status = self._library.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
        self._check(status, "nvrtcCreateProgram")
        try:
            options = compile_options(variant, architecture, path.parent) + extra_options
            encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), encoded)
            log = self._read(program, "ProgramLog").decode(errors="replace")
            if status != _SUCCESS:
                raise CudaKernelError(f"{variant.label()} does not compile for {architecture}: {log[:1500]}")
            kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
            return CompiledKernel(self._read(program, kind), architecture, log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        memory = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, memory), what)
        return memory.raw

    def _check(self, status: int, what: str) -> None:
        if status != _SUCCESS:
            raise CudaKernelError(f"NVRTC: {what} failed: {self._library.nvrtcGetErrorString(status).decode()}")


def compile_options(variant: KernelVariant, architecture: str, folder: Path) -> tuple[str, ...]:
    """NVRTC's options for ``variant``, whose source lies in ``folder`` and includes relative to it."""
    return (f"--gpu-architecture={architecture}", "--std=c++17", f"-I{folder}", *variant.flags())


def load_nvrtc(cuda_major: int | None = None) -> Nvrtc:
    """The NVRTC beside torch, or a toolkit's; that of ``cuda_major`` first. CudaKernelError if there is none."""
    tried = []
    for path in nvrtc_candidates(cuda_major):
        try:
            return Nvrtc(load_library(path), path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise CudaKernelError(
        "no libnvrtc found" + (f" ({'; '.join(tried)})" if tried else ""),
        hint="install a CUDA build of torch, or the package nvidia-cuda-nvrtc-cu12",
    )


def nvrtc_candidates(cuda_major: int | None) -> list[str]:
    """Paths of libnvrtc, best first: packages beside torch, an environment of conda, $CUDA_HOME, and then names, for
    the system's loader to find."""
    folders = [Path(entry) / "nvidia" for entry in dict.fromkeys(sys.path) if entry]
    found: list[Path] = []
    for folder in folders:
        found += sorted(folder.glob("cu1[0-9]/lib/libnvrtc.so.1[0-9]"), reverse=True)
        found += sorted(folder.glob("cuda_nvrtc/lib/libnvrtc.so.1[0-9]"), reverse=True)
    found += sorted((Path(sys.prefix) / "lib").glob("libnvrtc.so.1[0-9]"), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root:
            found += sorted(Path(root).glob("lib64/libnvrtc.so.1[0-9]"), reverse=True)
    if cuda_major is not None:
        found.sort(key=lambda path: not path.name.endswith(f".{cuda_major}"))
    plain = sorted(_PLAIN_NAMES, key=lambda name: cuda_major is not None and not name.endswith(f".{cuda_major}"))
    system = ctypes.util.find_library("nvrtc")
    return [*dict.fromkeys([*map(str, found), *([system] if system else []), *plain])]


def load_library(path: str) -> ctypes.CDLL:
    """Load libnvrtc-builtins first: libnvrtc opens it by name, and their folder is on no search path."""
    for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
        if Path(path).is_file():
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(path)


# Compiled CUDA kernels on disk: one file per source, options, compiler and architecture, valid whenever it exists.


logger = logging.getLogger("kvplan_engine")


def cached_image(variant: KernelVariant, nvrtc: Nvrtc, architecture: str) -> bytes:
    """The compiled ``variant``, from the cache, or compiled and stored there.

    Two processes may compile the same kernel at once: the files are equal, and each appears atomically. If the cache
    cannot be written, a temporary folder is used; if there is none either, the next start compiles again.
    """
    name = f"{image_key(variant, nvrtc.version, architecture)}.bin"
    place: Path | None = None
    for path in _cached_paths(name):
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


def image_path(variant: KernelVariant, nvrtc: Nvrtc, architecture: str) -> Path:
    """Where the compiled ``variant`` is stored."""
    return kernel_cache_dir() / "cuda" / f"{image_key(variant, nvrtc.version, architecture)}.bin"


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
