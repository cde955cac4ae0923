"""What becomes of verdicts: kept on disk, chosen by time, and what a process leaves behind that ended in a check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from planted_faults import GPT2, LLAMA

from kvplan_engine import EngineConfig, EngineError
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.kernel_checks import run as run_module
from kvplan_engine.kernel_checks.case import Times
from kvplan_engine.kernel_checks.operation_cases import operations_of
from kvplan_engine.kernel_checks.run import check_kernels
from kvplan_engine.kernel_checks.use import FAMILIES, KernelUse, is_chosen_by_time, use_of
from kvplan_engine.kernel_checks.verdicts import Store, Verdict, Verdicts, open_store, verdicts_from_json
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.emulation import EMULATED_PROPERTIES, EmulatedRuntime
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.models import device_kernels
from kvplan_engine.models.device_kernels import checked_kernels

GOOD = Verdict("decode_mma", passed=True, is_used=True, error=0.001, tolerance=0.02)
SLOW = Verdict("skinny_mma", passed=True, is_used=False, why="not faster", micros=9.0, twin_micros=8.0)


def use_with(config: dict = LLAMA, dtype: str = "bfloat16", **settings: object) -> KernelUse:
    return use_of(read_config(config), EngineConfig(model=config, load_format="dummy", **settings), dtype)


def only(use: KernelUse, *names: str) -> KernelUse:
    """Of what is chosen by time those families alone, and nothing else that takes long to check."""
    return replace(use, heads=(), formats=(), mixtures=(), states=(), possible=frozenset(names))


def asked_and_possible(**settings: object) -> tuple[set[str], set[str]]:
    use = use_with(**settings)
    return set(use.asked), set(use.possible)


def test_verdicts_survive_a_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "key.json")
    assert store.read() is None
    store.write(Verdicts((GOOD, SLOW), 1.5))
    found = store.read()
    assert found is not None
    assert found.of == (GOOD, SLOW)
    assert found.is_cached
    assert found.avoided == {"skinny_mma"}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"verdicts": 3}', '{"verdicts": [{"family": "decode_mma"}]}', "\x00\xff"],
)
def test_a_corrupt_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.json"
    path.write_text(text, encoding="latin-1")
    assert Store(path).read() is None


def test_a_family_that_nobody_knows_is_checked_anew() -> None:
    kept = Verdicts((GOOD,)).as_json()
    kept["verdicts"][0]["family"] = "prefill_of_tomorrow"
    assert verdicts_from_json(kept) is None


def test_the_key_follows_device_and_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVPLAN_CACHE_DIR", str(tmp_path))
    keys = {open_store(parts).path for parts in (["a"], ["b"], ["a", "b"], ["a"])}
    assert len(keys) == 3
    older = EmulatedRuntime(replace(EMULATED_PROPERTIES, driver_version="12.4"))
    use = use_with()
    assert run_module._key(EmulatedRuntime(), use) != run_module._key(older, use)
    assert run_module._key(EmulatedRuntime(), use) != run_module._key(EmulatedRuntime(), use_with(GPT2))


def test_a_second_start_reads_what_the_first_one_found(tmp_path: Path) -> None:
    store, use = Store(tmp_path / "key.json"), only(use_with(), families.DEPENDENT_LAUNCH)
    first = check_kernels(EmulatedRuntime(), use, store)
    second = check_kernels(EmulatedRuntime(), use, store)
    assert not first.is_cached
    assert second.is_cached
    assert second.of == first.of
    assert {each.family for each in first.of} >= {"rms_norm", "argmax_rows", "draws", "dependent_launch"}


def test_what_a_process_ended_in_is_avoided(tmp_path: Path) -> None:
    store, runtime = Store(tmp_path / "key.json"), EmulatedRuntime()
    store.begin("rms_norm")
    verdicts = check_kernels(runtime, only(use_with()), store)
    assert [each.family for each in verdicts.failed] == ["rms_norm"]
    assert "ended while it tried" in verdicts.failed[0].why
    assert "rms_norm" in runtime.properties.avoided
    assert store.left_behind() is None
    assert check_kernels(EmulatedRuntime(), only(use_with()), store).failed  # it is kept
    assert not check_kernels(EmulatedRuntime(), only(use_with()), store, anew=True).failed


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (KeyboardInterrupt(), None),
        (torch.OutOfMemoryError("CUDA out of memory."), None),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "rms_norm"),
    ],
    ids=["interrupted", "out of memory", "lost"],
)
def test_a_mark_stays_only_where_the_gpu_was_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, left: str | None
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(EmulatedRuntime, "kernel", fail)
    store, runtime = Store(tmp_path / "key.json"), EmulatedRuntime()
    with pytest.raises((KeyboardInterrupt, torch.OutOfMemoryError, EngineError)) as raised:
        check_kernels(runtime, only(use_with()), store)
    assert isinstance(raised.value, EngineError) is (left is not None)
    assert store.left_behind() == left
    assert not runtime.properties.avoided


def test_heads_that_the_engine_refuses_are_not_checked() -> None:
    use = use_with()
    odd = replace(use, heads=(replace(use.heads[0], key_size=40, value_size=40),))
    assert not any("decode" in name for case in odd.cases(EMULATED_PROPERTIES) for name in case.families)


@pytest.mark.parametrize(("fast", "is_used"), [(7.0, True), (9.9, False), (12.0, False)])
def test_time_decides_between_those_that_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fast: float, is_used: bool
) -> None:
    """Only where more than noise is won."""
    monkeypatch.setattr(run_module, "compete", lambda *_: Times(fast, 10.0))
    verdicts = check_kernels(EmulatedRuntime(), only(use_with(), families.SKINNY), Store(tmp_path / "key.json"))
    assert verdicts.passes("skinny_mma")
    assert verdicts.uses("skinny_mma") is is_used
    kernels = checked_kernels(EmulatedRuntime(), torch.bfloat16, only(use_with()), Store(tmp_path / "key.json"))
    assert len(kernels.with_linears("auto").projections) == 2 + is_used
    assert len(kernels.with_linears("torch").projections) == 2


def test_settings_decide_what_is_tried() -> None:
    always = {families.DEPENDENT_LAUNCH, families.FLOAT8_MMA, families.FLOAT8_SHORT, families.MIXTURE_LARGE}
    timed = {families.PREFILL_WGMMA, families.SHARED_PREFIX, families.SKINNY, *always}
    assert asked_and_possible() == (set(), timed)
    assert asked_and_possible(attention_backend="cuda", linear_backend="torch") == (set(), always)
    asked, _ = asked_and_possible(attention_backend="cuda_wgmma", linear_backend="cuda_skinny", enable_pdl=True)
    assert asked == {families.PREFILL_WGMMA, families.SKINNY, families.DEPENDENT_LAUNCH}


def test_launches_overlap_where_that_is_asked_for_or_won(tmp_path: Path) -> None:
    for is_used, wanted in ((True, (True, True, False)), (False, (False, True, False))):
        store, runtime = Store(tmp_path / f"{is_used}.json"), EmulatedRuntime()
        store.write(Verdicts((Verdict("dependent_launch", passed=True, is_used=is_used),)))
        kernels = checked_kernels(runtime, torch.bfloat16, only(use_with()), store)
        for setting, overlaps in zip((None, True, False), wanted, strict=True):
            kernels.overlap_launches(setting)
            assert runtime.overlaps_launches is overlaps


def test_a_case_that_fails_hands_over_to_its_twin(tmp_path: Path) -> None:
    """A pool's write and a state have twins that wait for the device: no step is captured with them."""
    for name, is_capturable in (("write_kv", False), ("states", False), ("silu_and_mul", True)):
        store = Store(tmp_path / f"{name}.json")
        store.write(Verdicts((Verdict(name, passed=False, is_used=False, why="an error of 1"),)))
        kernels = checked_kernels(EmulatedRuntime(), torch.bfloat16, only(use_with()), store)
        assert kernels.is_capturable is is_capturable


def test_kernels_left_to_themselves_are_the_fast_ones_that_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the way that an engine on a GPU takes; on this device what passes is used."""
    monkeypatch.setattr(run_module, "open_store", lambda _: Store(None))
    monkeypatch.setattr(device_kernels, "current_runtime", EmulatedRuntime)
    model = read_config(GPT2)
    for settings, wanted in (
        ({}, (True, True, True)),
        ({"attention_backend": "cuda", "linear_backend": "torch"}, (False, False, False)),
        ({"attention_backend": "cuda_wgmma", "linear_backend": "torch"}, (True, False, False)),
    ):
        config = EngineConfig(model=GPT2, load_format="dummy", **settings)
        kernels = device_kernels.select_kernels(config.attention_backend, "cuda", torch.bfloat16)
        kernels = kernels.checked(model, config, "bfloat16").with_linears(config.linear_backend)
        planner = kernels.attention._planner
        assert (planner._wgmma, planner._shares, len(kernels.projections) == 3) == wanted
        assert not kernels.verdicts.failed


def test_every_operation_is_a_family_and_has_arguments() -> None:
    declared = {name for name in vars(Ops) if not name.startswith("_")}
    assert declared == set(families.OPERATIONS)
    checked = {name for config in (LLAMA, GPT2) for name, _ in operations_of(use_with(config).operations)}
    assert declared - checked == {"gelu_inplace"}  # of GPT-NeoX


def test_every_family_is_in_the_table() -> None:
    named = {
        value
        for name, value in vars(families).items()
        if name[0].isupper() and name.isupper() and isinstance(value, str)
    }
    assert named | set(families.OPERATIONS) <= set(FAMILIES)
    assert is_chosen_by_time("shared_prefix_fp8")
    text = json.dumps({name: FAMILIES[name].what for name in FAMILIES})
    assert len(json.loads(text)) == len(FAMILIES)
