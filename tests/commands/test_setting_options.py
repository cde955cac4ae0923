"""Settings are declared once: ranges, names, command-line options and the engines' defaults follow from it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Annotated, get_origin

import pytest
import typer

from kvplan.catalog.engines import KVPLAN_DEFAULTS
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.cli import main
from kvplan.commands.options.groups import annotations_of
from kvplan.commands.options.settings import takes_settings
from kvplan.errors import UsageError
from kvplan.setting_values import read_settings
from kvplan.settings import KNOBS, FilledSettings, ServingSettings
from kvplan_engine import EngineConfig


def test_every_field_is_a_knob_whose_default_is_in_range() -> None:
    assert list(KNOBS) == [each.name for each in fields(ServingSettings)]
    ServingSettings().check()
    for name, knob in KNOBS.items():
        assert knob.help.endswith("."), name
        knob.check(knob.default)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gpu_memory_utilization", 0.0, "gpu_memory_utilization must be above 0 and at most 1, got 0."),
        ("gpu_memory_utilization", 1.5, "gpu_memory_utilization must be above 0 and at most 1, got 1.5."),
        ("max_num_seqs", 0, "max_num_seqs must be at least 1, got 0."),
        (
            "max_num_seqs",
            10**20,
            "max_num_seqs must be at most 1,152,921,504,606,846,976, got 100,000,000,000,000,000,000.",
        ),
        ("num_speculative_tokens", -1, "num_speculative_tokens must be at least 0, got -1."),
        ("dtype", "float7", "Unknown dtype 'float7'."),
        ("usage", "desktop", "Unknown usage 'desktop'."),
    ],
)
def test_out_of_range_is_refused_by_name(name: str, value: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServingSettings(**{name: value}).check()  # type: ignore[arg-type]
    assert caught.value.message == message and caught.value.hint
    with pytest.raises(UsageError) as caught:
        ServingSettings(**{name: value}).check(as_options=True)  # type: ignore[arg-type]
    assert caught.value.message == message.replace(name, KNOBS[name].option)


def test_options_are_read_as_they_are_written() -> None:
    written = {"max_num_batched_tokens": "8k", "device_memory_bytes": "80GiB", "dtype": "bf16", "block_size": None}
    settings = read_settings(written)
    assert settings == ServingSettings(max_num_batched_tokens=8192, device_memory_bytes=80 * 2**30, dtype="bfloat16")
    with pytest.raises(UsageError, match="--block-size must be at least 1, got 0"):
        read_settings({"block_size": "0"})
    for text in ("\u00b2", "9" * 5000, "-" + "9" * 5000, "--5"):
        with pytest.raises(UsageError, match="tokens"):
            read_settings({"block_size": text})


def test_a_command_gets_one_object_for_all_its_setting_options() -> None:
    @takes_settings("max_num_seqs", "tensor_parallel_size")
    def command(model: str, settings: ServingSettings = ServingSettings()) -> tuple[str, ServingSettings]:
        return model, settings

    assert command(model="m", max_num_seqs=3, tensor_parallel_size=2) == (
        "m",
        ServingSettings(max_num_seqs=3, tensor_parallel_size=2),
    )


def test_filled_settings_keep_what_was_asked() -> None:
    asked = ServingSettings(max_num_seqs=7, tensor_parallel_size=2)
    decided = {name: getattr(KVPLAN_DEFAULTS, name) for name in ("gpu_memory_utilization", "block_size")}
    filled = FilledSettings.of(asked, max_model_len=99, max_num_batched_tokens=5, device_memory_bytes=1, **decided)
    assert (filled.max_num_seqs, filled.tensor_parallel_size, filled.max_model_len) == (7, 2, 99)


def test_the_planner_knows_the_engines_own_defaults() -> None:
    config = EngineConfig(model="gpt2")
    for name in ("gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "block_size"):
        assert getattr(KVPLAN_DEFAULTS, name) == getattr(config, name), name


@pytest.mark.parametrize("engine", ["kvplan", "vllm@0.11", "vllm@0.32"])
def test_an_estimate_takes_its_engines_default(capsys, engine: str) -> None:  # type: ignore[no-untyped-def]
    assert main(["estimate", "gpt2", "--gpu", "l4", "--engine", engine, "--json"]) == 0
    name, _, version = engine.partition("@")
    release = KVPLAN_DEFAULTS if name == "kvplan" else vllm_release(version)
    (found,) = json.loads(capsys.readouterr().out)["deployments"]
    assert found["gpu_memory_utilization"] == release.gpu_memory_utilization


def test_an_option_without_a_default_stays_one_on_every_python() -> None:
    """Python 3.10's get_type_hints hides the option of a parameter whose default is None: MODEL was no argument."""

    def command(model: Annotated[str | None, typer.Argument(metavar="MODEL")] = None, number: int = 1) -> None: ...

    found = annotations_of(command)
    assert (get_origin(found["model"]), found["number"]) == (Annotated, int)
