"""Why a GPU cannot be used: one line each, on machines that are made up."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvplan.errors import KvplanError
from kvplan.machine import device as machine_module
from kvplan.machine.device import NoGpu, OpenedGpu
from kvplan.machine.visible_gpu import first_visible_gpu, gpu_of
from kvplan.sweeps.worker import answers
from kvplan.sweeps.worker.answers import opened_gpu
from kvplan_engine import EngineError
from kvplan_engine.device import cuda
from kvplan_engine.device import device as device_module
from kvplan_engine.device.cuda import open_cuda, refuse_unusable_gpu, why_no_gpu
from kvplan_engine.device.device import open_device
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError


class Machine:
    """What torch, the driver and NVML say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.says(available=False, built_for="12.8", driver="13.0", gpu="NVIDIA L4")

    def says(self, *, available: bool, built_for: str | None, driver: str | None, gpu: str | None) -> None:
        def load_driver() -> SimpleNamespace:
            if driver is None:
                raise CudaKernelError("no NVIDIA driver found: libcuda.so.1: cannot open shared object file")
            return SimpleNamespace(version=lambda: driver)

        self._patch.setattr(torch.cuda, "is_available", lambda: available)
        self._patch.setattr(torch.version, "cuda", built_for)
        self._patch.setattr(cuda, "load_driver", load_driver)
        self._patch.setattr(cuda, "visible_gpu", lambda: gpu)

    def has(self, capability: tuple[int, int], torch_knows: list[str]) -> None:
        """A GPU that torch sees, and what this torch has kernels for."""
        self._patch.setattr(torch.cuda, "is_available", lambda: True)
        self._patch.setattr(torch.cuda, "get_arch_list", lambda: torch_knows)
        self._patch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla V100")
        properties = SimpleNamespace(name="Tesla V100", capability=capability)
        self._patch.setattr(cuda, "current_runtime", lambda: SimpleNamespace(properties=properties))

    def fails(self, message: str) -> None:
        def fail() -> None:
            raise CudaKernelError(message, hint="a way out")

        self._patch.setattr(cuda, "current_runtime", fail)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("built_for", "driver", "gpu", "words"),
    [
        (None, None, None, "no CUDA device found"),
        (None, "13.0", "NVIDIA L4", r"a GPU \(NVIDIA L4\), but the installed torch .* is built without CUDA"),
        ("12.8", None, None, "no NVIDIA driver found"),
        ("13.0", "12.4", "NVIDIA L4", r"driver supports CUDA 12\.4, too old for the installed torch, .* for 13\.0"),
        ("12.8", "12.4", "NVIDIA L4", "torch finds no CUDA device, although NVIDIA L4 is present"),
    ],
    ids=["no GPU", "CPU torch beside a GPU", "no driver", "old driver", "driver of the same CUDA"],
)
def test_the_reason(machine: Machine, built_for: str | None, driver: str | None, gpu: str | None, words: str) -> None:
    machine.says(available=False, built_for=built_for, driver=driver, gpu=gpu)
    with pytest.raises(EngineError, match=words) as info:
        open_cuda(None)
    assert "\n" not in info.value.message and info.value.hint


def test_devices_that_are_hidden(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides every GPU" in why_no_gpu().sentence


@pytest.mark.parametrize(
    ("capability", "known", "refused"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90"], True),
        ((7, 0), ["sm_70", "sm_80"], False),
        ((8, 9), ["sm_80", "sm_86"], False),
        ((12, 0), ["sm_80", "compute_90"], False),
        ((12, 0), ["sm_90a"], True),
    ],
)
def test_a_torch_without_kernels_for_the_gpu(
    machine: Machine, capability: tuple[int, int], known: list[str], refused: bool
) -> None:
    machine.has(capability, known)
    if not refused:
        refuse_unusable_gpu()
        return
    with pytest.raises(EngineError, match="has no kernels for Tesla V100"):
        refuse_unusable_gpu()


@pytest.mark.parametrize(
    "message",
    ["no libnvrtc found", "Tesla P100 has compute capability 6.0; the kernels need 7.0 or newer"],
    ids=["no NVRTC", "too old"],
)
def test_auto_takes_the_cpu_and_says_why_while_cuda_refuses(
    machine: Machine, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    machine.has((6, 0), [])
    machine.fails(message)
    with caplog.at_level(logging.INFO, "kvplan_engine"):
        assert open_device("auto", 64 * 1024**2).torch_device.type == "cpu"
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == f"device auto takes the CPU: {message}"
    with pytest.raises(EngineError, match=message):
        open_device("cuda", None)


def test_auto_says_which_gpu_it_takes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine.has((9, 0), ["sm_90"])
    taken = SimpleNamespace(name="NVIDIA H100")
    monkeypatch.setattr(device_module, "open_cuda", lambda _: taken)
    with caplog.at_level(logging.INFO, "kvplan_engine"):
        assert open_device("auto", None) is taken
    assert "device auto takes the GPU: NVIDIA H100" in caplog.text


def test_a_machine_without_a_gpu_is_no_reason_to_warn(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.says(available=False, built_for=None, driver=None, gpu=None)
    with caplog.at_level(logging.INFO, "kvplan_engine"):
        open_device("auto", 64 * 1024**2)
    assert "device auto takes the CPU: no CUDA device found" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_sweep_says_that_it_leaves_a_gpu_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: ("NVIDIA L4", 24 * 1024**3))
    monkeypatch.setattr(machine_module, "_torch_is_cpu_build", lambda: True)
    notice = machine_module.detect_device("auto", 64 * 1024**2).notice
    assert notice is not None
    assert notice.startswith(
        "A GPU is present, but the installed torch has no CUDA support for the NVIDIA L4: running on the CPU"
    )
    with pytest.raises(KvplanError, match="the installed torch has no CUDA support for the NVIDIA L4"):
        machine_module.detect_device("cuda", None)


GPU = OpenedGpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10 * 1024**3, 1100 * 1024**2, "3b1d9a2e-0000")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that lists a GPU, and a torch whose name does not say whether it can use one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine_module, "has_driver", lambda: True)
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: ("NVIDIA H100 80GB HBM3", 79 * 1024**3))
    monkeypatch.setattr(machine_module, "_torch_is_cpu_build", lambda: False)


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_what_a_worker_opened_is_the_device(requested: str) -> None:
    """Not what the driver lists first: a slice, another card of the box, one that shares the machine's memory."""
    found = machine_module.detect_device(requested, None, ask=lambda: GPU)
    assert (found.kind, found.name, found.memory_bytes) == ("cuda", GPU.name, 10 * 1024**3)
    assert (found.overhead_bytes, found.uuid, found.engine_memory_bytes) == (1100 * 1024**2, "3b1d9a2e-0000", None)
    assert machine_module.detect_device(requested, 1024**3, ask=lambda: GPU).engine_memory_bytes == 1024**3


@pytest.mark.usefixtures("listed")
def test_a_gpu_that_the_worker_cannot_use_is_one_warning_or_one_error() -> None:
    absence = NoGpu("the NVIDIA driver supports CUDA 12.4, too old for this torch", "update the driver", True)
    notice = machine_module.detect_device("auto", 64 * 1024**2, ask=lambda: absence).notice
    assert notice is not None
    assert notice.startswith(
        "A GPU is present, but the NVIDIA driver supports CUDA 12.4, too old for this torch: running"
    )
    assert notice.endswith(". hint: update the driver")
    with pytest.raises(KvplanError, match=r"No CUDA device found \(the NVIDIA driver supports CUDA 12\.4") as refused:
        machine_module.detect_device("cuda", None, ask=lambda: absence)
    assert refused.value.hint == "update the driver, or use --device cpu"


@pytest.mark.usefixtures("listed")
def test_no_worker_is_asked_where_it_could_find_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> NoGpu:
        pytest.fail("a worker was asked")

    assert machine_module.detect_device("cpu", 64 * 1024**2, ask=ask).kind == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: None)
    assert machine_module.detect_device("auto", 64 * 1024**2, ask=ask).kind == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(machine_module, "has_driver", lambda: False)
    assert machine_module.detect_device("auto", 64 * 1024**2, ask=ask).kind == "cpu"


def test_a_worker_answers_with_the_engine_s_own_reason(machine: Machine) -> None:
    machine.says(available=False, built_for=None, driver=None, gpu="NVIDIA L4")
    none = opened_gpu()["none"]
    assert none is not None
    assert none["sentence"].startswith("the installed torch")
    assert none["is_present"]
    machine.says(available=False, built_for="12.8", driver=None, gpu=None)
    assert opened_gpu()["none"] == {
        "sentence": "no NVIDIA driver found (no libcuda.so.1)",
        "hint": "install the NVIDIA driver",
        "is_present": False,
    }


def test_a_worker_answers_with_the_gpu_as_its_engine_opens_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has((9, 0), ["sm_90"])
    taken = SimpleNamespace(name="NVIDIA H100", total_bytes=80, overhead_bytes=3, torch_device=torch.device("cuda", 0))
    monkeypatch.setattr(answers, "CudaDevice", lambda _: taken)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="ab-cd"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    expected = {"name": "NVIDIA H100", "memory_bytes": 80, "overhead_bytes": 3, "uuid": "ab-cd"}
    expected |= {"compute_capability": (9, 0)}
    assert opened_gpu() == {"type": "device", "gpu": expected, "none": None}

    def full(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.\nmore of it")

    monkeypatch.setattr(answers, "CudaDevice", full)
    none = opened_gpu()["none"]
    assert none is not None
    assert none["sentence"] == "it cannot be opened: CUDA out of memory. Tried to allocate 2 MiB"


class Nvml:
    """A driver of two cards that share the machine's memory, which knows whole UUIDs alone."""

    NVMLError = type("NVMLError", (Exception,), {})
    uuids = ("GPU-1111aaaa-22", "GPU-8932f937-33")

    def nvmlInit(self) -> None:  # the driver's names
        pass

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"card {handle}"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.uuids[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        if uuid in self.uuids:
            return self.uuids.index(uuid)
        if uuid == "MIG-44":
            return uuid
        raise self.NVMLError("Not Found")


@pytest.mark.parametrize(
    ("visible", "name"),
    [(None, "card 0"), ("1,0", "card 1"), ("GPU-8932f937-33", "card 1"), ("GPU-77", None), ("-1", "card 0")],
)
def test_the_gpu_that_cannot_be_used_is_the_one_that_was_named(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, name: str | None
) -> None:
    """In a box of several kinds, the driver's first card is another one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]  # of which some names are used
    assert cuda.visible_gpu() == name


def test_the_beginning_of_a_uuid_names_a_gpu_as_in_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937")
    driver: Any = Nvml()
    assert first_visible_gpu(driver) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-77")
    with pytest.raises(Nvml.NVMLError):
        first_visible_gpu(driver)
    assert (gpu_of(driver, "8932f937-33"), gpu_of(driver, "44")) == (1, "MIG-44")


@pytest.mark.parametrize("by_our_torch", [True, False])
def test_a_driver_that_describes_no_gpu_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, by_our_torch: bool
) -> None:
    """In a container without NVML, or with a slice that it does not describe: a dry run has no more."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine_module, "_torch_is_cpu_build", lambda: False)
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: None)
    monkeypatch.setattr(machine_module, "has_driver", lambda: True)
    with pytest.raises(KvplanError, match="a driver runs, but its NVML describes no GPU"):
        machine_module.detect_device("cuda", None, by_our_torch=by_our_torch)
    notice = machine_module.detect_device("auto", 64 * 1024**2, by_our_torch=by_our_torch).notice
    assert notice is not None and notice.startswith("A GPU is present, but a driver runs")


@pytest.mark.usefixtures("listed")
def test_nothing_is_opened_where_nobody_is_to_be_asked() -> None:
    """As in a dry run: what the driver lists is believed."""
    found = machine_module.detect_device("auto", None, ask=None)
    assert (found.kind, found.name, found.overhead_bytes) == ("cuda", "NVIDIA H100 80GB HBM3", None)


@pytest.mark.parametrize("visible", ["-1", ""])
def test_gpus_that_are_hidden_are_not_called_a_missing_driver(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(KvplanError, match=f"CUDA_VISIBLE_DEVICES is '{visible}', which hides every GPU"):
        machine_module.detect_device("cuda", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(KvplanError, match="no NVIDIA driver"):
        machine_module.detect_device("cuda", None)


def test_another_engine_brings_a_torch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_torch_is_cpu_build", lambda: True)
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: ("NVIDIA L4", 24 * 1024**3))
    found = machine_module.detect_device("cuda", None, by_our_torch=False)
    assert (found.kind, found.name, found.memory_bytes) == ("cuda", "NVIDIA L4", 24 * 1024**3)
    monkeypatch.setattr(machine_module, "_first_gpu", lambda: None)
    with pytest.raises(KvplanError, match="No CUDA device found") as refused:
        machine_module.detect_device("cuda", None, by_our_torch=False)
    assert refused.value.hint == "this engine needs one: run it where a GPU is"
