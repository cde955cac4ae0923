"""Why a GPU cannot be used: one line each, on machines that are made up."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from kvplan.errors import KvplanError
from kvplan.machine import device as machine_module
from kvplan_engine import EngineError
from kvplan_engine.device import cuda_absence
from kvplan_engine.device import device as device_module
from kvplan_engine.device.cuda import open_cuda
from kvplan_engine.device.cuda_absence import refuse_unusable_gpu, why_no_gpu
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
        self._patch.setattr(cuda_absence, "load_driver", load_driver)
        self._patch.setattr(cuda_absence, "visible_gpu", lambda: gpu)

    def has(self, capability: tuple[int, int], torch_knows: list[str]) -> None:
        """A GPU that torch sees, and what this torch has kernels for."""
        self._patch.setattr(torch.cuda, "is_available", lambda: True)
        self._patch.setattr(torch.cuda, "get_arch_list", lambda: torch_knows)
        self._patch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla V100")
        properties = SimpleNamespace(name="Tesla V100", capability=capability)
        self._patch.setattr(cuda_absence, "current_runtime", lambda: SimpleNamespace(properties=properties))

    def fails(self, message: str) -> None:
        def fail() -> None:
            raise CudaKernelError(message, hint="a way out")

        self._patch.setattr(cuda_absence, "current_runtime", fail)


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
