"""Compiling, caching, loading and launching, with a libnvrtc and a libcuda that only take notes."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

import pytest
import torch
from cuda_cases import AttentionCase, Batch, build_batch
from kernel_matrix import every_kernel, properties_of

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions
from kvplan_engine.attention.cuda import CudaBackend
from kvplan_engine.attention.layer_cache import uniform_cache
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import OutOfDeviceMemory
from kvplan_engine.kernels import cache_folders
from kvplan_engine.kernels.cuda.launching import driver as cuda_driver
from kvplan_engine.kernels.cuda.launching import nvrtc as cuda_nvrtc
from kvplan_engine.kernels.cuda.launching.driver import (
    Driver,
    DriverRuntime,
    LaunchAttribute,
    LaunchConfig,
    make_runtime,
)
from kvplan_engine.kernels.cuda.launching.nvrtc import CompiledKernel, Nvrtc, cached_image, image_key
from kvplan_engine.kernels.cuda.launching.runtime import HANDLE_BYTES, DeviceProperties, boxed_pages
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant
from kvplan_engine.kernels.cuda.params import AttentionParams, CopyParams, PrefillWgmmaParams, TensorMap

WGMMA_THREADS = 384
COPY = KernelVariant("attention/cache/copy_blocks.cu", "copy_blocks")


class FakeNvrtc(Nvrtc):
    """Knows some capabilities and compiles everything to a note."""

    def __init__(self, capabilities: tuple[tuple[int, int], ...], log: str = "") -> None:
        self.version = (12, 8)
        self._capabilities = capabilities
        self._log = log
        self.compiled: list[str] = []

    def supported_capabilities(self) -> tuple[tuple[int, int], ...]:
        return self._capabilities

    def compile(self, variant, architecture, extra_options=()) -> CompiledKernel:
        self.compiled.append(variant.label())
        return CompiledKernel(f"{variant.label()} for {architecture}".encode(), architecture, self._log)


class Noted:
    """A C function that notes its arguments and returns a status."""

    def __init__(self, notes: list, name: str, status: int = 0, fill=None) -> None:
        self._notes, self._name, self._status, self._fill = notes, name, status, fill

    def __call__(self, *arguments) -> int:
        if self._fill is not None:
            self._fill(*arguments)
        self._notes.append((self._name, arguments))
        return self._status


class FakeLibrary:
    """libcuda: loads anything, launches anything, notes all."""

    def __init__(self, launch_status: int = 0, map_status: int = 0, share_status: int = 0) -> None:
        self.notes: list = []
        self.params: list[bytes] = []
        self.configs: list[tuple] = []
        self.cuLaunchKernel = Noted(self.notes, "launch", launch_status, self._copy_params)
        self.cuLaunchKernelEx = Noted(self.notes, "early launch", launch_status, self._copy_config)
        self.cuModuleLoadData = Noted(self.notes, "load")
        self.cuModuleGetFunction = Noted(self.notes, "function")
        self.cuFuncSetAttribute = Noted(self.notes, "attribute")
        self.cuGetErrorString = Noted(self.notes, "error", 0, self._say)
        self.cuTensorMapEncodeTiled = Noted(self.notes, "map", map_status, self._fill_map)
        self.cuDriverGetVersion = Noted(self.notes, "version", 0, lambda value: self._set(value, 13010))
        self.cuDeviceGet = Noted(self.notes, "device")
        self.cuDeviceCanAccessPeer = Noted(self.notes, "peer", 0, lambda value, own, other: self._set(value, 1))
        self.cuMemAlloc_v2 = Noted(self.notes, "allocate", 0, lambda value, size: self._set(value, 1 << 33))
        self.cuMemFree_v2 = Noted(self.notes, "free")
        self.cuMemsetD8_v2 = Noted(self.notes, "clear")
        self.cuCtxSynchronize = Noted(self.notes, "synchronise")
        self.cuIpcGetMemHandle = Noted(self.notes, "handle", share_status, self._fill_handle)
        self.cuIpcOpenMemHandle_v2 = Noted(
            self.notes, "open", 0, lambda value, handle, flags: self._set(value, 1 << 34)
        )
        self.cuIpcCloseMemHandle = Noted(self.notes, "close")
        self.cuDeviceGetAttribute = Noted(
            self.notes, "device attribute", 0, lambda value, attribute, _: self._set(value, attribute)
        )

    def _copy_params(self, *arguments) -> None:
        structure = PrefillWgmmaParams if arguments[4] == WGMMA_THREADS else AttentionParams
        self.params.append(ctypes.string_at(arguments[9][0], ctypes.sizeof(structure)))

    def _fill_map(self, target, *_) -> None:
        """128 bytes of the number of this map."""
        ctypes.memset(target, len(self.named("map")) + 1, ctypes.sizeof(TensorMap))

    @staticmethod
    def _fill_handle(handle, _) -> None:
        handle._obj.reserved[:] = range(HANDLE_BYTES)

    def _copy_config(self, *arguments) -> None:
        config = arguments[0]._obj
        attributes = [config.attributes[index] for index in range(config.num_attributes)]
        launch = (*config.grid, *config.block, config.shared_bytes, config.stream)
        self.configs.append((launch, [(each.id, *each.value) for each in attributes]))
        self.params.append(ctypes.string_at(arguments[2][0], ctypes.sizeof(CopyParams)))

    @staticmethod
    def _set(reference, number: int) -> None:
        reference._obj.value = number

    @staticmethod
    def _say(_, reference) -> None:
        reference._obj.value = b"too many resources requested for launch"

    def named(self, name: str) -> list[tuple]:
        return [arguments for noted, arguments in self.notes if noted == name]


class FakeStream:
    cuda_stream = 4242


@pytest.fixture(autouse=True)
def _stream_and_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: FakeStream)
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path))


def fake_runtime(library: FakeLibrary, capability: tuple[int, int] = (9, 0)) -> DriverRuntime:
    nvrtc = FakeNvrtc(((7, 0), (8, 0), (8, 6), (9, 0)))
    return make_runtime(Driver(library), nvrtc, torch.device("cpu"), properties_of(capability))


def test_a_kernel_is_compiled_once_and_found_in_the_cache_afterwards() -> None:
    nvrtc = FakeNvrtc(((9, 0),))
    first = cached_image(COPY, nvrtc, "sm_90")
    assert cached_image(COPY, nvrtc, "sm_90") == first
    assert len(nvrtc.compiled) == 1
    cached_image(COPY, nvrtc, "sm_80")
    assert len(nvrtc.compiled) == 2


def test_the_cache_key_covers_all_that_decides_the_binary() -> None:
    keys = {image_key(variant, (12, 8), "sm_90") for variant in every_kernel((9, 0))}
    assert len(keys) == len(every_kernel((9, 0)))
    keys |= {image_key(COPY, (12, 9), "sm_90"), image_key(COPY, (12, 8), "sm_80")}
    assert len(keys) == len(every_kernel((9, 0))) + 2


def test_a_cache_that_cannot_be_written_does_no_harm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(blocker))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr(cache_folders, "_SHARED_MEMORY", tmp_path / "none")
    assert cached_image(COPY, FakeNvrtc(((9, 0),)), "sm_90").startswith(b"copy_blocks")
    (tmp_path / "tmp").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    image = cached_image(COPY, FakeNvrtc(((9, 0),)), "sm_90")
    (kept,) = (tmp_path / "tmp").rglob("*.bin")
    assert kept.read_bytes() == image
    kept.write_bytes(b"what was kept")
    assert cached_image(COPY, FakeNvrtc(((9, 0),)), "sm_90") == b"what was kept"


def test_a_warning_of_a_users_compiler_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The compile gate refuses warnings; on the machine of a user, a newer NVRTC's new warning must not."""
    log = "ptxas info    : Used 3 registers\nplan.cu(3): warning #177-D: variable was declared but never referenced\n"
    assert cached_image(COPY, FakeNvrtc(((9, 0),), log), "sm_90").startswith(b"copy_blocks")
    assert "177-D" in caplog.text


def test_products_that_run_one_by_one_are_a_warning() -> None:
    line = "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to"
    log = f"ptxas info    : Used 3 registers\n{line}\n"
    assert CompiledKernel(b"", "sm_90a", log).warnings == (line,)


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [((9, 0), "sm_90"), ((8, 9), "sm_86"), ((8, 7), "sm_86"), ((12, 0), "compute_90"), ((7, 5), "sm_70")],
)
def test_the_architecture_is_the_nearest_that_runs_there(capability, architecture: str) -> None:
    assert FakeNvrtc(((7, 0), (8, 0), (8, 6), (9, 0))).architecture_for(capability) == architecture


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [
        ((10, 3), "sm_100"),  # B300 with NVRTC 12.8, which knows 10.0 and 10.1
        ((10, 1), "sm_101"),
        ((11, 0), "compute_100"),
        ((8, 9), "sm_86"),
        ((8, 7), "sm_87"),
        ((7, 5), "sm_70"),
        ((7, 2), "sm_72"),
    ],
)
def test_binaries_of_systems_on_a_chip_are_for_them_alone(capability, architecture: str) -> None:
    known = ((5, 3), (6, 2), (7, 0), (7, 2), (8, 6), (8, 7), (10, 0), (10, 1))
    assert FakeNvrtc(known).architecture_for(capability) == architecture


def test_a_gpu_that_nvrtc_or_the_kernels_do_not_know_is_refused_in_one_line() -> None:
    with pytest.raises(CudaKernelError, match=r"NVRTC 12.8 does not compile for compute capability 7\.0"):
        FakeNvrtc(((7, 5), (8, 0))).architecture_for((7, 0))
    old = DeviceProperties("Tesla P100", (6, 0), 56, 49152, 65536, "12.8")
    with pytest.raises(CudaKernelError, match=r"Tesla P100 has compute capability 6\.0"):
        make_runtime(Driver(FakeLibrary()), FakeNvrtc(((7, 0),)), torch.device("cpu"), old)


def test_device_properties_come_from_the_driver() -> None:
    found = Driver(FakeLibrary()).properties(0, "some GPU")
    assert found == DeviceProperties("some GPU", (75, 76), 16, 97, 81, "13.1")


def test_a_launch_passes_grid_stream_and_the_structure() -> None:
    library = FakeLibrary()
    kernel = fake_runtime(library).kernel(COPY)
    params = CopyParams(1, 2, 3, 4)
    kernel((5, 6), 256, 1000, params)
    (arguments,) = library.named("launch")
    assert arguments[1:9] == (5, 6, 1, 256, 1, 1, 1000, 4242)
    assert library.params[0][:32] == bytes(params)
    assert library.named("attribute") == []
    kernel((0, 6), 256, 0, params)
    assert len(library.named("launch")) == 1


def test_a_launch_that_may_begin_early_has_its_attribute_where_the_device_knows_it() -> None:
    library = FakeLibrary()
    runtime = fake_runtime(library)
    runtime.overlaps_launches = True
    params = CopyParams(1, 2, 3, 4)
    runtime.kernel(COPY)((5, 6), 256, 1000, params)
    assert library.configs == [((5, 6, 1, 256, 1, 1, 1000, 4242), [(6, 1, *[0] * 15)])]
    assert library.params == [bytes(params)]
    assert library.named("launch") == []
    runtime.overlaps_launches = False
    runtime.kernel(COPY)((5, 6), 256, 0, params)
    older = fake_runtime(library, (8, 6))
    older.overlaps_launches = True
    older.kernel(COPY)((5, 6), 256, 0, params)
    assert len(library.named("launch")) == 2


def test_the_structures_of_a_launch_lie_as_the_drivers() -> None:
    """Offsets of CUlaunchConfig and CUlaunchAttribute, printed by a C program over CUDA 13.0's cuda.h."""
    assert (ctypes.sizeof(LaunchAttribute), LaunchAttribute.value.offset) == (72, 8)
    fields = (LaunchConfig.stream, LaunchConfig.attributes, LaunchConfig.num_attributes)
    assert (ctypes.sizeof(LaunchConfig), *(each.offset for each in fields)) == (56, 32, 40, 48)


def test_an_early_launch_that_fails_says_what_the_driver_says() -> None:
    runtime = fake_runtime(FakeLibrary(launch_status=701))
    runtime.overlaps_launches = True
    with pytest.raises(CudaKernelError, match="too many resources requested for launch"):
        runtime.kernel(COPY)((1, 1), 128, 0, CopyParams())


def test_large_shared_memory_is_asked_for_once() -> None:
    library = FakeLibrary()
    kernel = fake_runtime(library).kernel(COPY)
    for _ in range(3):
        kernel((1, 1), 128, 100_000, CopyParams())
    asked = [(attribute, value.value) for _, attribute, value in library.named("attribute")]
    assert asked == [(8, 100_000), (9, 100)]


def test_a_failed_launch_says_what_the_driver_says() -> None:
    kernel = fake_runtime(FakeLibrary(launch_status=701)).kernel(COPY)
    with pytest.raises(CudaKernelError, match="too many resources requested for launch"):
        kernel((1, 1), 128, 0, CopyParams())


def attend(backend: CudaBackend, batch: Batch, layer: int, window: int | None = None) -> None:
    options = AttentionOptions(0.1, window)
    backend.attend(AttentionInputs(batch.query, uniform_cache(batch.kv, layer), batch.metadata, batch.out, options))


def test_a_decode_step_plans_once_and_launches_once_per_layer() -> None:
    library = FakeLibrary()
    backend = CudaBackend(fake_runtime(library))
    case = AttentionCase(128, 16, 8, 2, (5, 900, 17), (1, 1, 1), scalar=torch.bfloat16)
    batch = build_batch(case)
    for layer in (0, 1):
        attend(backend, batch, layer)
    grids = [arguments[1:3] for arguments in library.named("launch")]
    properties = properties_of((9, 0))
    items = 3 + 2 * properties.num_multiprocessors // 2
    assert grids == [(1, 1), (items, 2), (items, 2)]
    first, second = (AttentionParams.from_buffer_copy(raw) for raw in library.params[1:])
    layer_bytes = 2 * 2 * 16 * 128 * 2
    assert (first.kv, second.kv) == (batch.kv.data_ptr(), batch.kv.data_ptr() + layer_bytes)
    assert first.block_stride == 2 * layer_bytes // 2
    assert (first.items, first.table_stride) == (second.items, batch.metadata.block_tables.stride(0))
    assert (first.window, first.softcap, first.sinks) == (0, 0.0, None)
    assert first.scale == pytest.approx(0.1)


def test_the_kernel_of_warp_groups_is_given_a_map_of_each_layers_pages_made_once(tmp_path: Path) -> None:
    library = FakeLibrary()
    backend = CudaBackend(fake_runtime(library), wgmma=True)
    batch = build_batch(AttentionCase(128, 16, 8, 2, (300,), (300,), scalar=torch.bfloat16))
    for layer in (0, 1, 0, 1):
        attend(backend, batch, layer)
    prefills = [arguments for arguments in library.named("launch") if arguments[4] == WGMMA_THREADS]
    assert [arguments[2] for arguments in prefills] == [2] * 4
    size = ctypes.sizeof(PrefillWgmmaParams)
    launched = [PrefillWgmmaParams.from_buffer_copy(raw) for raw in library.params if len(raw) == size]
    maps = [(given.keys.words[15], given.values.words[0]) for given in launched]
    assert maps == [(0x0101010101010101 * number, 0x0101010101010101 * (number + 1)) for number in (1, 3, 1, 3)]
    assert launched[1].attention.kv == uniform_cache(batch.kv, 1).keys.data_ptr()
    (image,) = (image for image in map(Path.read_bytes, tmp_path.rglob("*.bin")) if b"prefill_wgmma" in image)
    assert image.endswith(b"for sm_90a")


# 128 bytes swizzled; bytes in whole rows as they are
@pytest.mark.parametrize(
    ("dtype", "kind", "columns", "swizzle"), [(torch.bfloat16, 9, 64, 3), (torch.float8_e4m3fn, 0, 128, 0)]
)
def test_a_tensor_map_says_where_the_pages_of_a_layer_lie(
    dtype: torch.dtype, kind: int, columns: int, swizzle: int
) -> None:
    library = FakeLibrary()
    pages = uniform_cache(torch.zeros(5, 3, 2, 4, 16, 128, dtype=dtype), 1).values
    fake_runtime(library).tensor_map(boxed_pages(pages, 16))
    ((target, element_type, rank, address, sizes, strides, box, steps, *ways),) = library.named("map")
    assert target.value % 64 == 0
    assert (element_type.value, rank.value, address.value) == (kind, 4, pages.data_ptr())
    assert (list(sizes), list(box), list(steps)) == ([128, 16, 4, 5], [columns, 16, 1, 1], [1, 1, 1, 1])
    assert list(strides) == [dtype.itemsize * pages.stride(axis) for axis in (2, 1, 0)]
    assert [way.value for way in ways] == [0, swizzle, 2, 0]  # not interleaved; swizzled; from 128 bytes on; zeros


def test_pages_that_the_driver_cannot_map_are_refused_with_its_words() -> None:
    pages = torch.zeros(5, 4, 16, 128, dtype=torch.float16)
    with pytest.raises(CudaKernelError, match=r"mapping \(128, 16, 4, 5\) elements .* failed"):
        fake_runtime(FakeLibrary(map_status=1)).tensor_map(boxed_pages(pages, 16))


def test_the_next_step_and_another_window_are_planned_anew() -> None:
    library = FakeLibrary()
    backend = CudaBackend(fake_runtime(library))
    batch = build_batch(AttentionCase(128, 16, 8, 2, (5, 900, 17), (1, 1, 1), scalar=torch.bfloat16))

    def step() -> int:
        before = len(library.named("launch"))
        for layer, window in ((0, None), (1, 100)):
            attend(backend, batch, layer, window)
        return len(library.named("launch")) - before

    assert [step(), step()] == [4, 4]


def test_reserve_compiles_and_makes_room_so_that_a_capture_allocates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    backend = CudaBackend(fake_runtime(library))
    batch = build_batch(AttentionCase(128, 16, 8, 2, (5, 900, 17), (1, 1, 1), scalar=torch.bfloat16))
    for window in (None, 100):
        backend.reserve_decode(uniform_cache(batch.kv, 0), torch.bfloat16, 8, 3, AttentionOptions(0.1, window))
    loaded = len(library.named("load"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("allocated during a capture")

    monkeypatch.setattr(torch, "zeros", refuse)
    monkeypatch.setattr(torch, "empty", refuse)
    for window in (None, 100):
        attend(backend, batch, 0, window)
    assert len(library.named("load")) == loaded


@pytest.mark.parametrize("phase", ["runtime", "graph_capture"])
def test_memory_that_the_driver_refuses_is_out_of_memory_like_any_other(phase: str) -> None:
    kernel = fake_runtime(FakeLibrary(launch_status=2)).kernel(COPY)
    with pytest.raises(OutOfDeviceMemory) as info, allocating(phase):
        kernel((1, 1), 32, 0, CopyParams(1, 2, 3, 4))
    assert info.value.phase == phase
    with pytest.raises(CudaKernelError, match="too many resources"), allocating(phase):
        fake_runtime(FakeLibrary(launch_status=701)).kernel(COPY)((1, 1), 32, 0, CopyParams(1, 2, 3, 4))


def test_without_a_gpu_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CudaKernelError, match="no CUDA device"):
        cuda_driver.current_runtime()


def test_nvrtc_of_a_conda_environment_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnvrtc.so.12").write_text("no library")
    monkeypatch.setattr(cuda_nvrtc.sys, "path", [])
    monkeypatch.setattr(cuda_nvrtc.sys, "prefix", str(tmp_path))
    assert cuda_nvrtc.nvrtc_candidates(12)[0] == str(tmp_path / "lib" / "libnvrtc.so.12")


def test_nvrtc_of_torchs_cuda_is_tried_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, name in (("cu13/lib", "libnvrtc.so.13"), ("cuda_nvrtc/lib", "libnvrtc.so.12")):
        (tmp_path / "nvidia" / folder).mkdir(parents=True)
        (tmp_path / "nvidia" / folder / name).write_text("no library")
    monkeypatch.setattr(cuda_nvrtc.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(cuda_nvrtc.ctypes.util, "find_library", lambda name: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(cuda_nvrtc.sys, "prefix", str(tmp_path))
    newer, older = "libnvrtc.so.13", "libnvrtc.so.12"
    assert [Path(path).name for path in cuda_nvrtc.nvrtc_candidates(13)] == [newer, older, newer, older]
    assert [Path(path).name for path in cuda_nvrtc.nvrtc_candidates(12)] == [older, newer, older, newer]
    assert cuda_nvrtc.nvrtc_candidates(12)[2:] == [older, newer], "last by name, for the system's loader to find"
    # By those names the loader also finds what this process has loaded already.
    monkeypatch.setattr(cuda_nvrtc, "_PLAIN_NAMES", ("libnvrtc.so.of-nobody",))
    with pytest.raises(CudaKernelError, match="no libnvrtc found"):
        cuda_nvrtc.load_nvrtc(12)


def test_memory_is_shared_by_handles_and_given_back() -> None:
    library = FakeLibrary()
    driver = Driver(library)
    assert driver.reaches(0, 1)
    shared = driver.share(4096)
    assert (shared.address, shared.handle) == (1 << 33, bytes(range(HANDLE_BYTES)))
    ((cleared, value, size),) = library.named("clear")
    assert (cleared.value, value.value, size.value) == (1 << 33, 0, 4096)
    order = [name for name, _ in library.notes]
    assert order.index("clear") < order.index("synchronise"), "a peer's first signal must not be cleared"
    opened = driver.open_shared(shared.handle)
    ((_, given, flags),) = library.named("open")
    assert (opened.address, bytes(given.reserved), flags.value) == (1 << 34, shared.handle, 1)
    assert not library.named("free") + library.named("close")
    del opened, shared
    assert [arguments[0].value for arguments in library.named("close") + library.named("free")] == [1 << 34, 1 << 33]


def test_where_processes_cannot_share_memory_none_is_kept() -> None:
    library = FakeLibrary(share_status=801)  # CUDA_ERROR_NOT_SUPPORTED, as under WSL
    with pytest.raises(CudaKernelError, match="sharing memory failed"):
        Driver(library).share(4096)
    assert len(library.named("free")) == 1
