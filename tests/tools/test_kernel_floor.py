"""The least times of kernels: arithmetic by hand, instructions of a listing, and rows that were measured."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import kernel_matrix
import pytest

import kernel_floor
from count_instructions import blocks_of, round_of
from kvplan.catalog.devices.gpus import find_gpu
from kvplan_engine.measuring import attention, formats, prefill, script

H100 = find_gpu("h100-sxm")
LISTING = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0040*/               @P2 BRA `(.L_x_4) ;
        /*0050*/                   FMUL R4, R4, R5 ;
        /*0060*/                   FMUL R6, R6, R5 ;
.L_x_4:
        /*0070*/                   LDGSTS.E.BYPASS.128 [R1], [R2.64] ;
        /*0080*/               @P3 BRA `(.L_x_4) ;
.L_x_5:
        /*0090*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*00a0*/               @P4 BRA `(.L_x_5) ;
        /*00b0*/               @P1 BRA `(.L_x_2) ;
        /*00c0*/                   EXIT ;
"""


def test_a_round_is_the_shortest_way_with_all_copies_and_products() -> None:
    counts = round_of(blocks_of(LISTING.splitlines()), copies=3, products=5)
    assert counts == Counter(HMMA=5, LDGSTS=3, BRA=1 + 3 + 4 + 1)


def test_times_are_those_of_the_data_sheet() -> None:
    work = next(
        one
        for one in kernel_floor.every_work(kernel_matrix.properties_of((9, 0)))
        if one.shape.items() >= {"model": "llama-3.1-8b", "batch": 64, "context": 4096, "shared": 0}.items()
    )
    floor = kernel_floor.floor_of(work, H100, Counter(LDGSTS=16, FMUL=461))
    kv_bytes = 64 * 4096 * 2 * 8 * 128 * 2
    assert floor.memory == pytest.approx(kv_bytes / 3.35e12)
    assert floor.issue == pytest.approx(
        kv_bytes / 8192 * 477 / (132 * 4 * 1.98e9), rel=0.01
    )  # a tile of 16 tokens: 8 KiB
    assert (floor.bound, floor.seconds) == ("memory", floor.memory + 0.5e-6)
    assert kernel_floor.issue_rate(find_gpu("a100")) == pytest.approx(108 * 4 * 1.41e9, rel=0.01)


def test_every_gpu_that_runs_tensor_kernels_has_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a100", "l40s", "h100-sxm", "b200", "rtx-5090"):
        gpu = find_gpu(name)
        major, minor = map(int, gpu.compute_capability.split("."))
        works = kernel_floor.every_work(kernel_matrix.properties_of((major, minor)))
        kernel_floor.print_table(gpu, works, lambda _: None, [])
        printed = capsys.readouterr().out
        assert printed.count("\n| ") == len(works) + 2
        assert ("warp groups" in printed) == (name == "h100-sxm")


@pytest.mark.slow
def test_what_the_script_measures_is_found_by_name_and_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention, "DECODE_SHAPES", attention.DRY_DECODE_SHAPES)
    monkeypatch.setattr(attention, "LLAMA", attention.DRY_HEADS)
    monkeypatch.setattr(prefill, "SHAPES", [prefill.PrefillShape(2, 20, 0), prefill.PrefillShape(2, 9, 30)])
    monkeypatch.setattr(prefill, "SHORT_SHAPES", [prefill.PrefillShape(1, 3, 60)])
    monkeypatch.setattr(
        formats, "CODES", {name: (*bits, 128, 256, (2, 20)) for name, (*bits, _, _, _) in formats.CODES.items()}
    )
    monkeypatch.setattr(formats, "EXPERTS", {"tiny": (4, 2, 64, 64)})
    monkeypatch.setattr(formats, "EXPERT_TOKENS", (9, 40))
    out = tmp_path / "rows.jsonl"
    for section in ("decode", "prefill", "formats"):
        script.measure_section(section, out, dry=True, seconds=100.0)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    works = [
        work
        for work in kernel_floor.every_work(kernel_matrix.properties_of((9, 0)))
        if work.section in ("decode", "prefill", "formats")
        if "shared prefixes" not in work.name and "latent" not in work.name
    ]
    assert len(works) == 7 + 5 + 2
    assert None not in [kernel_floor.measured_seconds(work, rows) for work in works]
    kernel_floor.print_table(H100, works, lambda _: None, rows)
    assert "| measured | measured / floor |" in capsys.readouterr().out
