"""Several kinds of devices: taken apart, set side by side, and what each gives for its price."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report_helpers import record, write_trials

from kvplan.errors import UsageError
from kvplan.reports.fleet import by_device, fleet_sentences
from kvplan.reports.pictures import draw_fleet
from kvplan.reports.plots.side_by_side import _num_legend_columns
from kvplan.reports.side_by_side import SideBySide, set_side_by_side, side_by_side_document
from kvplan.runs.storage.reader import load_run

L4 = {"device": "cuda", "device_name": "NVIDIA L4", "device_memory_bytes": 24 << 30}
H100 = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "device_memory_bytes": 80 << 30}
CPU = {"device": "cpu", "device_name": "A CPU", "device_memory_bytes": 8 << 30}


def three_devices(directory: Path) -> list[Path]:
    rows = {
        "l4": [record(1, 4, 100.0, **L4), record(2, 8, 120.0, **L4), record(3, 16, None, **L4)],
        "h100": [record(1, 4, 400.0, **H100), record(2, 8, 700.0, **H100), record(3, 16, 1000.0, **H100)],
        "cpu": [record(1, 4, 10.0, **CPU)],
    }
    return [write_trials(directory / name, each) for name, each in rows.items()]


PRICES = {"l4": 0.5, "a cpu": 0.25, "h100-sxm": 4.0}


def fleet(directory: Path) -> SideBySide:
    return set_side_by_side([load_run(path) for path in three_devices(directory)], PRICES)


def test_each_device_stands_with_its_own_best_setting(tmp_path: Path) -> None:
    l4, h100, cpu = fleet(tmp_path).devices
    assert [device.label for device in (l4, h100, cpu)] == ["NVIDIA L4", "NVIDIA H100 80GB HBM3", "A CPU"]
    assert (l4.output_throughput, l4.max_running, l4.num_served, l4.num_settings) == (120.0, 8, 2, 3)
    assert (h100.output_throughput, h100.max_running, h100.median_tpot_ms) == (1000.0, 16, 16.0)
    assert l4.tokens_per_second_per_usd == pytest.approx(240.0)
    assert h100.tokens_per_second_per_usd == pytest.approx(250.0)
    assert cpu.tokens_per_usd == pytest.approx(10.0 * 3600 / 0.25)
    assert cpu.as_json()["usd_per_million_output_tokens"] == pytest.approx(0.25 / 3600 / 10.0 * 1e6)


def test_at_shared_settings_they_stand_side_by_side(tmp_path: Path) -> None:
    compared = fleet(tmp_path)
    assert list(compared.table["max_num_seqs"]) == [4, 8, 16]
    assert list(compared.ratios(1)) == pytest.approx([4.0, 700 / 120])
    document = side_by_side_document(compared)
    assert [device["name"] for device in document["devices"]][2] == "A CPU"
    assert document["sentences"][:2] == [
        "NVIDIA H100 80GB HBM3 is the fastest: 1,000 tokens/s at its best setting.",
        "NVIDIA H100 80GB HBM3 gives the most for its price: 250 tokens/s for a dollar an hour.",
    ]


def test_prices_of_the_profiles_count_where_none_is_given(tmp_path: Path) -> None:
    runs = [load_run(path) for path in three_devices(tmp_path)]
    l4, _, cpu = set_side_by_side(runs).devices
    assert l4.usd_per_hour is not None and l4.usd_per_hour > 0
    assert l4.price_source, "a figure without a source is none"
    assert cpu.usd_per_hour is None and cpu.tokens_per_usd is None
    assert "A CPU: no price is known; --price NAME=USD gives one." in fleet_sentences((l4, cpu))
    with pytest.raises(UsageError, match="--price names 'a100', but no row was measured on it"):
        set_side_by_side(runs, {"a100": 1.0})


def test_a_sharded_setting_costs_all_of_its_devices(tmp_path: Path) -> None:
    ranks = {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}
    rows = ([record(1, 4, 100.0, **L4)], [record(1, 4, 100.0, **(H100 | ranks))])
    runs = [load_run(write_trials(tmp_path / str(place), each)) for place, each in enumerate(rows)]
    _, h100 = set_side_by_side(runs, {"h100-sxm": 4.0}).devices
    assert (h100.num_devices, h100.usd_per_hour) == (6, 24.0)


def test_ranks_on_a_cpu_cost_one_machine(tmp_path: Path) -> None:
    rows = ([record(1, 4, 100.0, **L4)], [record(1, 4, 100.0, **(CPU | {"tensor_parallel_size": 2}))])
    runs = [load_run(write_trials(tmp_path / str(place), each)) for place, each in enumerate(rows)]
    _, cpu = set_side_by_side(runs, {"a cpu": 0.25}).devices
    assert (cpu.num_devices, cpu.usd_per_hour) == (1, 0.25)


@pytest.mark.parametrize(
    ("labels", "columns"),
    [(["vLLM 0.32.0", "kvplan"], 2), (["NVIDIA H100 80GB HBM3 (second)", "NVIDIA L4"], 1), (["a" * 200], 1)],
)
def test_a_legend_takes_no_more_room_than_its_axes(labels: list[str], columns: int) -> None:
    assert _num_legend_columns(labels) == columns


def test_one_directory_with_two_kinds_is_taken_apart(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    mixed = write_trials(tmp_path / "mixed", [record(1, 4, 100.0, **L4), record(2, 4, 400.0, **H100)])
    parts = by_device(load_run(mixed))
    assert [len(part.trials) for part in parts] == [1, 1]
    assert [part.frame["output_throughput"].tolist() for part in parts] == [[100.0], [400.0]]
    document = json.loads(printed_by("report", str(mixed), "--format", "json"))
    assert [device["output_throughput"] for device in document["devices"]] == [100.0, 400.0]
    alone = load_run(write_trials(tmp_path / "alone", [record(1, 4, 100.0, **L4)]))
    assert by_device(alone) == [alone]


def test_devices_need_no_setting_in_common(tmp_path: Path, printed_by: Callable[..., str]) -> None:
    rows = ([record(1, 4, 100.0, **L4)], [record(1, 64, 900.0, **H100)])
    paths = [str(write_trials(tmp_path / str(place), each)) for place, each in enumerate(rows)]
    text = printed_by("report", *paths, "--format", "md")
    assert "## Devices, each at its fastest setting" in text
    assert "| NVIDIA L4 | 24 | 1 of 1 | 100 |" in text


def test_sweeps_that_only_counted_have_sequences_and_no_speeds(tmp_path: Path) -> None:
    rows = ([record(1, 4, None, status="ok", **L4)], [record(1, 64, None, status="ok", **H100)])
    runs = [load_run(write_trials(tmp_path / str(place), each)) for place, each in enumerate(rows)]
    compared = set_side_by_side(runs)
    assert [device.max_running for device in compared.devices] == [4, 64]
    assert [device.output_throughput for device in compared.devices] == [None, None]
    assert fleet_sentences(compared.devices) == ["None of 2 devices has a speed: nothing was computed or served."]
    assert draw_fleet(compared) is not None


@pytest.mark.parametrize("kind", ["html", "csv", "png"])
def test_every_format_of_the_command(tmp_path: Path, printed_by: Callable[..., str], kind: str) -> None:
    directories = [str(path) for path in three_devices(tmp_path)]
    text = printed_by("report", *directories, "--format", kind, "--price", "l4=0.5")
    if kind == "html":
        page = (tmp_path / "l4" / "fleet.html").read_text(encoding="utf-8")
        assert "Devices, each at its fastest setting" in page and page.count("data:image/png;base64,") == 4
        assert "tokens/s per USD/h" in page
    elif kind == "png":
        assert [Path(line).name for line in text.split()] == ["fleet.png", "engines.png"]
    else:
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["device"] for row in rows].count("NVIDIA L4") == 3


def test_a_price_without_a_fleet_is_refused(tmp_path: Path, said_by: Callable[..., str]) -> None:
    alone = str(write_trials(tmp_path / "alone", [record(1, 4, 100.0, **L4)]))
    assert "--price is for runs of several devices" in said_by("report", alone, "--price", "l4=1")
    assert "--price 'much' is not NAME=USD_PER_HOUR" in said_by("report", alone, "--price", "much")
