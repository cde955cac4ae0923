"""What a deployment does without to serve its load: a seat for every request, CUDA graphs."""

from __future__ import annotations

from kvplan.planner.choices.deployment import PlannedDeployment


def seats_sentence(deployment: PlannedDeployment) -> str | None:
    """``96 of 200 requests have one (--max-num-seqs 96); ...``; None where all have."""
    if not deployment.waits:
        return None
    served, seats = deployment.served, deployment.prediction.settings.serving.max_num_seqs
    where = "" if deployment.replicas == 1 else " on each replica"
    counts = f"{served.num_running:,.0f} of {served.num_users:,.0f} requests{where}"
    return f"{counts} have one (--max-num-seqs {seats}); the others wait, which TTFT includes."


def graphs_sentence(deployment: PlannedDeployment) -> str | None:
    """None where steps have graphs, or were asked for without."""
    if not deployment.choice.enforce_eager:
        return None
    return "left out (--enforce-eager): their memory is KV cache, and a step takes at least as long as launching it."
