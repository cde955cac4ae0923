"""How much this client can read on this machine: the same load against a server that answers at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kvplan.errors import KvplanError
from kvplan.load.client.body import RequestForm
from kvplan.load.observed.health import LEAST_CEILING_RATIO
from kvplan.load.options import LoadOptions
from kvplan.load.run import run_load
from kvplan.load.sending import run_on_loop
from kvplan.load.target import find_model, probe_target
from kvplan.load.traffic.arrivals import UNLIMITED
from kvplan.metrics.http import ServerAddress

_COMMAND = (sys.executable, "-m", "kvplan.load.instant")
# A ceiling is a steady rate: more requests than a short load has, and no pauses between them.
_LEAST_REQUESTS = 256


@dataclass(frozen=True, slots=True)
class Ceiling:
    """tokens_per_second: read with ``num_in_flight`` streams. cpu_seconds_per_token: of all the client's processes.

    Both client and server had to share the machine, so a server elsewhere leaves the client more.
    """

    tokens_per_second: float
    cpu_seconds_per_token: float
    num_in_flight: int

    def warning(self, measured_throughput: float | None) -> str | None:
        """A sentence where what was measured comes close to the ceiling."""
        if not measured_throughput or self.tokens_per_second >= LEAST_CEILING_RATIO * measured_throughput:
            return None
        ratio = self.tokens_per_second / measured_throughput
        return (
            f"the client reads at most {self.tokens_per_second:,.0f} tokens/s here, only {ratio:.1f} times what was "
            "measured: part of the latency may be its own (--num-clients sends from several processes)"
        )


def measure_ceiling(options: LoadOptions) -> Ceiling:
    """Serve the options' requests as fast as they go. KvplanError if the server for it does not start."""
    plan = options.traffic()
    num_in_flight = plan.users or plan.max_in_flight or 64
    num_prompts = max(plan.workload.num_prompts, _LEAST_REQUESTS)
    plan = replace(
        plan,
        workload=replace(plan.workload, num_prompts=num_prompts),
        rate=UNLIMITED,
        users=None,
        think_seconds=0.0,
        max_in_flight=num_in_flight,
        duration_seconds=None,
        num_warmups=0,
    )
    with instant_server() as url:
        address = ServerAddress.parse(url)
        model, _ = find_model(address, None, None)
        form = RequestForm(address, options.endpoint, model)
        target = run_on_loop(probe_target(form, None, timeout_seconds=options.request_timeout))
        run = run_load(
            target,
            plan,
            timeout_seconds=options.request_timeout,
            num_clients=options.num_clients,
            with_metrics=False,
        )
    row = run.row({})
    throughput, tokens = row["output_throughput"] or 0.0, row["total_output_tokens"] or 0
    return Ceiling(throughput, run.health.cpu_seconds / tokens if tokens else 0.0, num_in_flight)


@contextmanager
def instant_server() -> Iterator[str]:
    """Its address. The process ends with the block, and with this process whatever ends that: its input closes."""
    process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise KvplanError("The server for the self-test did not start.")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        process.stdout.close()
        process.terminate()
        process.wait()
