"""`kvplan doctor`: the screen, the driver's facts, and reports of real workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from synthetic_sweep import TRUTH, write_sweep

from kvplan.catalog.devices.measured import read_measured
from kvplan.doctor import measure, session
from kvplan.doctor.screen import WIDTH, is_all_right, screen_of
from kvplan.doctor.session import driver_facts
from kvplan.errors import KvplanError
from kvplan.units import GIB
from kvplan_engine import EngineConfig, EngineError
from kvplan_engine.device import cuda
from kvplan_engine.doctor import examine as examining
from kvplan_engine.doctor.examine import _first_answer, choose_over_gpus, cpu_units, examine, place_of
from kvplan_engine.kernel_checks.verdicts import Verdict, Verdicts


def verdict(family: str, **changes: Any) -> dict[str, Any]:
    plain = {"family": family, "passed": True, "is_used": True, "why": "", "error": 0.001, "tolerance": 0.02}
    return {**plain, "micros": None, "twin_micros": None, "what": family, "twin": "torch"} | changes


H100: dict[str, Any] = {
    "schema": "kvplan.doctor/1",
    "model": "meta-llama/Llama-3.1-8B",
    "versions": {"kvplan": "0.3.0", "python": "3.12.3", "torch": "2.13.0+cu130"},
    "system": "Linux 6.8.0 x86_64",
    "torch_cuda": "13.0",
    "device": "cuda",
    "dtype": "bfloat16",
    "cpu": {"name": "AMD EPYC 9554", "units": ["AVX2", "AVX-512"], "num_threads": 16, "available_bytes": 120 * GIB},
    "gpu": {
        "name": "NVIDIA H100 80GB HBM3",
        "capability": "9.0",
        "num_multiprocessors": 132,
        "total_bytes": 79 * GIB,
        "free_bytes": 78 * GIB,
        "overhead_bytes": GIB,
        "is_unified": False,
        "num_devices": 2,
        "driver_cuda": "13.0",
        "architecture": "sm_90",
        "compiler": "NVRTC 13.0",
        "compiler_place": "beside torch (nvidia/cu13/lib)",
    },
    "driver": {
        "name": "NVIDIA H100 80GB HBM3",
        "driver_version": "580.82.07",
        "memory": {"total": 80 * GIB, "reserved": GIB, "used": GIB, "free": 78 * GIB},
        "mig": "off",
        "clock_mhz": 1755,
        "max_clock_mhz": 1980,
        "power_watts": 96.4,
        "power_cap_watts": 700.0,
        "other_processes": [2 * GIB, GIB],
    },
    "verdicts": [
        verdict("rms_norm"),
        verdict("decode_mma"),
        verdict("prefill_wgmma", why="faster: 71.0 us against 101.3", twin="prefill_mma"),
        verdict("skinny_mma", is_used=False, why="not faster: 14.2 us against 13.9", twin="cuBLAS"),
    ],
    "check_seconds": 1.31,
    "is_cached": False,
}


def text_of(report: dict[str, Any]) -> str:
    lines = screen_of(report)
    assert all(len(line) <= WIDTH for line in lines)
    assert all(line.isascii() for line in lines)
    assert len(lines) <= 40, "more than a screen"
    return " ".join(" ".join(lines).split())


def test_a_gpu_fits_a_screen() -> None:
    text = text_of(H100)
    for part in (
        "compute capability 9.0, 132 multiprocessors; 1 more visible",
        "580.82.07, CUDA up to 13.0",
        "79.00 GiB by CUDA, 78.00 GiB free; 80.00 GiB by NVML, of which 1.00 GiB reserved",
        "MIG off; clock 1755 of 1980 MHz; power 96 W, cap 700 W; 2 other users with 3.00 GiB",
        "NVRTC 13.0, beside torch (nvidia/cu13/lib); compiles for sm_90",
        "against torch's float32, checked in 1.3 s:",
        "right rms_norm decode_mma",
        "in use prefill_wgmma: faster: 71.0 us against 101.3",
        "not used skinny_mma: not faster: 14.2 us against 13.9 (cuBLAS runs instead)",
        "4 kernels checked, all right.",
    ):
        assert part in text
    assert is_all_right(H100)


def test_several_gpus_say_whose_sums_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ranks of an engine choose at its start; a process that ends without a word is named."""
    choice = "up to 64 KiB: 8.1 us against NCCL's 14.2 for 8 KiB"
    text = text_of(H100 | {"gpu": H100["gpu"] | {"custom_all_reduce": choice}})
    assert f"ranks custom all-reduce over 2 GPUs: {choice}" in text
    assert choose_over_gpus(2, "bfloat16", "emulated") == "in use; times mean nothing here"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert re.fullmatch(r"not known, rank [01] ended with exit code 1", choose_over_gpus(2, "bfloat16"))


def test_ranks_do_not_run_a_kernel_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that hangs; an engine's ranks do not run it either."""
    verdicts = Verdicts((Verdict("all_reduce", passed=False, is_used=False),))
    monkeypatch.setattr(examining, "why_no_usable_gpu", lambda: None)
    monkeypatch.setattr(examining, "gpu_facts", lambda: ({}, None))
    monkeypatch.setattr(examining, "_dtype_on", lambda *_: "bfloat16")
    monkeypatch.setattr(examining, "check_kernels", lambda *_, **__: verdicts)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(examining, "choose_over_gpus", lambda *_: pytest.fail("started"))
    report = examine(EngineConfig(model="gpt2", load_format="dummy"), "cuda")
    assert report["gpu"]["custom_all_reduce"] == "off, the kernel is not right on each GPU"


def test_what_nccl_prints_is_not_the_ranks_choice() -> None:
    said = "printf 'NCCL version 2.27.3\\noff, not faster\\n'"
    with subprocess.Popen(["sh", "-c", said], stdout=subprocess.PIPE, text=True) as process:
        assert _first_answer([process]) == "off, not faster"


def test_what_is_wrong_is_named_with_what_runs_instead() -> None:
    report = deepcopy(H100)
    why = "an error of 0.31, and 0.02 is allowed"
    report["verdicts"][1] = verdict("decode_mma", passed=False, is_used=False, why=why, twin="decode_simple")
    text = text_of(report)
    assert "WRONG decode_mma: an error of 0.31, and 0.02 is allowed; decode_simple runs instead" in text
    assert "1 kernel of 4 wrong: please open an issue with this." in text
    assert not is_all_right(report)
    report["verdicts"][1] |= {"family": "decode_simple", "twin": None}
    text = text_of(report)
    assert "nothing can stand in for it" in text
    assert "decode_simple cannot be replaced" in text


def test_a_driver_that_tells_nothing_is_no_error() -> None:
    """WSL and containers without NVML; GB10, whose memory NVML does not tell."""
    text = text_of(H100 | {"driver": {}, "gpu": H100["gpu"] | {"is_unified": True, "num_devices": 1}})
    assert "NVML tells none" in text
    assert "shared with the CPU" in text
    assert "not told by the driver" in text


class NvmlError(Exception):
    pass


def nvml(**changes: Any) -> SimpleNamespace:
    """A driver with one GPU, which answers what it is asked, but for ``changes``."""

    def refuse(*_: object, **__: object) -> None:
        raise NvmlError("Not Supported")

    memory = SimpleNamespace(total=80 * GIB, reserved=GIB, used=3 * GIB, free=76 * GIB)
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": 0,
        "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
        "nvmlSystemGetDriverVersion": "580.82.07",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceIsMigDeviceHandle": 0,
        "nvmlDeviceGetMigMode": (1, 1),
        "nvmlDeviceGetClockInfo": 1755,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetPowerUsage": 96_400,
        "nvmlDeviceGetPowerManagementLimit": 700_000,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=None)],
    } | changes
    functions = {
        name: refuse if value is NvmlError else (lambda *_, _value=value, **__: _value)
        for name, value in answers.items()
        if value is not AttributeError
    }
    return SimpleNamespace(NVMLError=NvmlError, NVML_CLOCK_SM=1, nvmlMemory_v2=2, **functions)


def test_the_drivers_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    facts = driver_facts()
    assert facts["mig"] == "on"
    assert facts["power_watts"] == 96.4
    assert facts["memory"]["reserved"] == GIB
    assert facts["other_processes"] == [0]
    unanswered = {"nvmlDeviceGetMemoryInfo": NvmlError, "nvmlDeviceGetMigMode": AttributeError}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**unanswered, nvmlDeviceGetPowerUsage=NvmlError))
    assert set(facts) - set(driver_facts()) == {"memory", "mig", "power_watts"}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=NvmlError))
    assert driver_facts() == {"error": "Not Supported"}


def test_a_cpu_is_checked_and_nobodys_home_is_told(printed_by: Callable[..., str], tmp_path: Path) -> None:
    """By the command, in a real worker."""
    printed = printed_by("doctor --device cpu --json")
    report = json.loads(printed)
    assert str(Path.home()) == "/" or str(Path.home()) not in printed
    assert {"layer_norm", "argmax_rows", "cpu_decode", "cpu_prompts", "cpu_write", "cpu_products"} <= {
        each["family"] for each in report["verdicts"]
    }
    assert is_all_right(report)
    assert "the CPU, as asked for" in text_of(report)


def test_a_gpu_that_is_not_there_is_a_sentence(said_by: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine refuses; what a worker refuses is an error with a hint."""
    monkeypatch.setattr(cuda, "visible_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineError) as refused:
        examine(EngineConfig(model="gpt2", load_format="dummy"), "cuda")
    assert refused.value.message
    answer = json.dumps({"type": "error", "message": "no GPU here.", "hint": "use device='cpu'"})
    monkeypatch.setattr(session, "WORKER_COMMAND", (sys.executable, "-c", f"print({answer!r}); input(); input()"))
    assert said_by("doctor --device cuda", code=1) == "error: no GPU here.\nhint: use device='cpu'\n"
    assert "'gpu' is not known" in said_by("doctor --device gpu")


def test_a_worker_that_ends_says_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "WORKER_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(KvplanError, match="ended with exit code 3") as death:
        session.examine("gpt2", "cpu")
    assert "not tried a second time" in (death.value.hint or "")


@pytest.mark.parametrize("code", [0, 1])
def test_a_measurement_is_a_file_to_send_and_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int) -> None:
    """Rows in the order they came, behind the report; also where a section failed."""
    rows = [
        {"name": "copy", "value": 3.0, "command": f"python {Path.home()}/x"},
        {"section": "decode", "outcome": "ok"},
    ]
    script = f"import sys; open(sys.argv[2], 'w').write({chr(10).join(map(json.dumps, rows))!r}); sys.exit({code})"
    monkeypatch.setattr(measure, "COMMAND", (sys.executable, "-c", script))
    found = measure.measure(H100, tmp_path / "new")
    assert found.rows.name == "nvidia-h100-80gb-hbm3-torch-2.13.0.jsonl"
    header, first, second = map(json.loads, found.rows.read_text().splitlines())
    assert header["report"] == H100
    assert first == rows[0] | {"command": "python ~/x"}
    assert second == rows[1]
    assert (found.num_rows, found.is_whole) == (1, code == 0)
    page = found.page.read_text()
    assert page.startswith("# Thank you")
    assert "132 multiprocessors" in page
    assert ("left out" in page) is (code == 1)
    assert found.profile is None
    assert "not calibrated: No sweep was run." in page


def test_the_sweep_of_a_measurement_becomes_a_profile_that_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "COMMAND", (sys.executable, "-c", "import sys; open(sys.argv[2], 'w')"))
    write_sweep(tmp_path / measure.SWEEP)
    found = measure.measure(H100, tmp_path)
    assert found.profile is not None
    profile = read_measured(found.profile)
    assert profile.device_name == "Test CPU"
    assert profile.coefficients["flops"] == pytest.approx(TRUTH.flops, rel=0.1)
    page = found.page.read_text()
    assert f"`{found.profile.name}` has the speeds of a sweep" in page
    assert "kvplan calibrate sweep" in page


def test_a_cpu_is_measured_by_other_commands() -> None:
    with pytest.raises(KvplanError, match="--measure is for a GPU"):
        measure.refuse_unmeasurable(H100 | {"device": "cpu"})


def test_a_home_becomes_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    found = session.without_home({"a": ["/home/somebody/lib", 3], "b": {"c": "at /home/somebody/x"}})
    assert found == {"a": ["~/lib", 3], "b": {"c": "at ~/x"}}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/home/me/v/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "beside torch (nvidia/cu13/lib)"),
        ("/usr/local/cuda/lib64/libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so.12"),
        ("/home/me/libnvrtc.so.12", "libnvrtc.so.12"),
        (f"{sys.prefix}/lib/libnvrtc.so.12", "in the environment's lib"),
    ],
)
def test_where_the_compiler_lies_names_no_user(path: str, words: str) -> None:
    assert place_of(path) == words


def test_units_of_a_processor() -> None:
    assert cpu_units("model name : x\nflags : fpu avx2 avx512f amx_tile\n") == ["AVX2", "AVX-512", "AMX"]
    assert cpu_units("Features : fp asimd sve\n") == ["NEON", "SVE"]
    assert cpu_units("") == []
