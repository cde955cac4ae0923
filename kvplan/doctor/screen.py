"""The report as one screen of 80 columns, in ASCII, to be pasted into an issue."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvplan.units import format_bytes, plural

WIDTH: Final = 80
_LABEL: Final = 13
_VERDICT: Final = 10


def screen_of(report: Mapping[str, Any]) -> list[str]:
    """Its lines."""
    versions = report["versions"]
    head = f"kvplan doctor {versions['kvplan']}: Python {versions['python']}, {report['system']}"
    return [*_wrapped("", head, 0), "", *_device_lines(report), "", *_kernel_lines(report), "", *_conclusion(report)]


# ---- the device


def _device_lines(report: Mapping[str, Any]) -> Iterator[str]:
    gpu, driver = report.get("gpu"), report["driver"]
    if gpu is not None:
        yield from _gpu_lines(gpu, driver)
    else:
        yield from _absence_lines(report, driver)
    yield from _line("torch", _torch(report))
    if gpu is not None:
        yield from _line("compiler", f"{gpu['compiler']}, {gpu['compiler_place']}; compiles for {gpu['architecture']}")
    cpu = report["cpu"]
    units = ", ".join(cpu["units"]) or "no vector units known"
    yield from _line("CPU", f"{cpu['name']}: {units}; {plural(cpu['num_threads'], 'thread')}")
    yield from _line("host memory", f"{format_bytes(cpu['available_bytes'])} available")


def _torch(report: Mapping[str, Any]) -> str:
    built = f"built for CUDA {report['torch_cuda']}" if report["torch_cuda"] else "built without CUDA"
    return f"{report['versions']['torch']}, {built}"


def _gpu_lines(gpu: Mapping[str, Any], driver: Mapping[str, Any]) -> Iterator[str]:
    shape = f"compute capability {gpu['capability']}, {gpu['num_multiprocessors']} multiprocessors"
    others = gpu["num_devices"] - 1
    yield from _line("GPU", f"{gpu['name']}, {shape}" + (f"; {others} more visible" if others else ""))
    version = driver.get("driver_version")
    yield from _line("driver", (f"{version}, " if version else "") + f"CUDA up to {gpu['driver_cuda']}")
    by_cuda = f"{format_bytes(gpu['total_bytes'])} by CUDA, {format_bytes(gpu['free_bytes'])} free"
    yield from _line("memory", f"{by_cuda}; {_memory_by_nvml(driver)}")
    unified = "shared with the CPU" if gpu["is_unified"] else "the GPU's own"
    yield from _line("", f"{unified}; reserved for what is no tensor: {format_bytes(gpu['overhead_bytes'])}")
    if (choice := gpu.get("custom_all_reduce")) is not None:
        yield from _line("ranks", f"custom all-reduce over {gpu['num_devices']} GPUs: {choice}")
    yield from _line("state", "; ".join(_state(driver)) or "not told by the driver")


def _memory_by_nvml(driver: Mapping[str, Any]) -> str:
    memory = driver.get("memory")
    if memory is None:
        return "NVML tells none"
    return f"{format_bytes(memory['total'])} by NVML, of which {format_bytes(memory['reserved'])} reserved"


def _state(driver: Mapping[str, Any]) -> Iterator[str]:
    if "mig" in driver:
        yield f"MIG {driver['mig']}"
    if "clock_mhz" in driver:
        most = f" of {driver['max_clock_mhz']}" if "max_clock_mhz" in driver else ""
        yield f"clock {driver['clock_mhz']}{most} MHz"
    if "power_watts" in driver:
        cap = f", cap {driver['power_cap_watts']:.0f} W" if "power_cap_watts" in driver else ""
        yield f"power {driver['power_watts']:.0f} W{cap}"
    if "other_processes" in driver:
        others = driver["other_processes"]
        held = f" with {format_bytes(sum(others))}" if sum(others) else ""
        yield f"{plural(len(others), 'other user')}{held}" if others else "no other user"


def _absence_lines(report: Mapping[str, Any], driver: Mapping[str, Any]) -> Iterator[str]:
    if report["device"] == "emulated":
        yield from _line(
            "device", "the CUDA kernels of compute capability 9.0, run by the CPU: right or wrong, not fast"
        )
        return
    reason = report.get("why_no_gpu")
    if reason is None:
        yield from _line("device", "the CPU, as asked for")
        return
    yield from _line("device", f"the CPU: {reason['sentence'].rstrip('.')}")
    if "name" in driver:
        yield from _line("", f"the driver lists {driver['name']}; {_memory_by_nvml(driver)}")
    if reason["hint"]:
        yield from _line("", f"hint: {reason['hint']}")


# ---- the kernels


def _kernel_lines(report: Mapping[str, Any]) -> Iterator[str]:
    verdicts = report["verdicts"]
    when = "known from an earlier check" if report["is_cached"] else f"checked in {report['check_seconds']:.1f} s"
    name = f" by {report['kernels_name']}" if "kernels_name" in report else ""
    if not verdicts:
        yield from _wrapped("", f"Kernels of {report['model']} in {report['dtype']}{name}: nothing to check.", 0)
        return
    yield from _wrapped(
        "", f"Kernels of {report['model']} in {report['dtype']}{name}, against torch's float32, {when}:", 2
    )
    plain = [each["family"] for each in verdicts if each["passed"] and not each["why"]]
    if plain:
        yield from _wrapped("  right".ljust(_VERDICT), " ".join(plain), _VERDICT)
    for each in verdicts:
        if each["passed"] and each["why"]:
            label = "  in use" if each["is_used"] else "  not used"
            yield from _wrapped(label.ljust(_VERDICT + 2), _reason(each), _VERDICT + 2)
    for each in verdicts:
        if not each["passed"]:
            yield from _wrapped(
                "  WRONG".ljust(_VERDICT), f"{each['family']}: {each['why']}; {_instead(each)}", _VERDICT
            )


def _reason(verdict: Mapping[str, Any]) -> str:
    instead = "" if verdict["is_used"] else f" ({verdict['twin']} runs instead)"
    return f"{verdict['family']}: {verdict['why']}{instead}"


def _instead(verdict: Mapping[str, Any]) -> str:
    if verdict["family"].startswith("cpu_"):
        return f"{verdict['twin']} avoids it"
    return "nothing can stand in for it" if verdict["twin"] is None else f"{verdict['twin']} runs instead"


def _conclusion(report: Mapping[str, Any]) -> list[str]:
    wrong = [each for each in report["verdicts"] if not each["passed"]]
    if not wrong:
        count = len(report["verdicts"])
        return [f"{plural(count, 'kernel')} checked, all right." if count else "Plain torch computes everything."]
    needed = [each["family"] for each in wrong if each["twin"] is None]
    if needed:
        text = f"{', '.join(needed)} cannot be replaced: attention_backend='reference' computes without."
        return _wrapped("", text, 0)
    return _wrapped(
        "", f"{plural(len(wrong), 'kernel')} of {len(report['verdicts'])} wrong: please open an issue with this.", 0
    )


# ---- lines


def _line(label: str, text: str) -> list[str]:
    return _wrapped(label.ljust(_LABEL), text, _LABEL)


def _wrapped(label: str, text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def is_all_right(report: Mapping[str, Any]) -> bool:
    """Whether every kernel that was checked is."""
    verdicts: Sequence[Mapping[str, Any]] = report["verdicts"]
    return all(each["passed"] for each in verdicts)
