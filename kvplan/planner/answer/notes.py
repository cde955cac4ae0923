"""A deployment's prefix cache, drafter, seats and steps: what they find, yield, lack and consist of, in sentences."""

from __future__ import annotations

from typing import Any

from kvplan.estimate.speed.queues import ExplainedStep, decode_step, mixed_step
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.question.request import Workload
from kvplan.units import plural


def _found_tokens(deployment: PlannedDeployment) -> float | None:
    """Tokens found of a prompt on average, with as many requests as there are; None where prompts share nothing."""
    middle, hits = deployment.served.middle, deployment.speed_model.hits
    if hits is None or middle is None:
        return None
    return hits.found(deployment.served.num_running, middle.e2el_seconds)


def hits_document(deployment: PlannedDeployment) -> dict[str, Any] | None:
    """None where prompts share nothing."""
    found, prompt = _found_tokens(deployment), deployment.speed_model.input_tokens
    if found is None:
        return None
    return {"prompt_tokens": prompt, "cached_tokens": round(found, 1), "hit_rate": round(found / prompt, 4)}


def hits_sentence(deployment: PlannedDeployment) -> str | None:
    """``1,536 of a prompt's 2,048 tokens (75 %) are found in the prefix cache``, with why no more are."""
    found, model = _found_tokens(deployment), deployment.speed_model
    if found is None or model.hits is None:
        return None
    prompt, hits = model.input_tokens, model.hits
    if not hits.hit_tokens:
        version = deployment.prediction.version
        return f"nothing is found: with these settings vLLM {version} keeps no prefixes of this model"
    text = f"{found:,.0f} of a prompt's {prompt:,} tokens ({100 * found / prompt:.0f} %) are found"
    if hits.sharing.hit_rate is not None:
        return f"{text}, as stated; whether the pool holds them is not checked, and no sequence shares its blocks"
    if hits.could_find - found > _MISSED * prompt:
        text += f"; with a larger KV pool {hits.could_find:,.0f} would be"
    if hits.sharing.turns > 1 and deployment.replicas > 1:
        text += "; where the router keeps a chat on one replica, as is assumed"
    return text


_MISSED = 0.01
"""Share of a prompt from which on a small pool is worth a word."""


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


def drafting_document(deployment: PlannedDeployment) -> dict[str, Any] | None:
    """None without a drafter."""
    drafter, drafting = deployment.choice.weights.spec.drafter, deployment.speed_model.drafting
    if drafter is None or drafting is None:
        return None
    return {
        "method": drafter.method,
        "model": None if drafter.model is None else drafter.name,
        "num_speculative_tokens": drafter.num_tokens,
        "acceptance_rate": drafting.acceptance_rate,
        "tokens_per_step": round(drafting.tokens_per_step, 3),
    }


def drafting_sentence(deployment: PlannedDeployment) -> str | None:
    """``mtp, 1 draft token a step, accepted with a chance of 80 %: 1.80 tokens a step``; None without a drafter."""
    drafter, drafting = deployment.choice.weights.spec.drafter, deployment.speed_model.drafting
    if drafter is None or drafting is None:
        return None
    return (
        f"{drafter.method}, {plural(drafter.num_tokens, 'draft token')} a step, accepted with a chance of "
        f"{100 * drafting.acceptance_rate:g} % each: {drafting.tokens_per_step:.2f} tokens a step. No published "
        "measurement was compared with such times, and how many are accepted depends on the task"
    )


def explained_steps(deployment: PlannedDeployment, workload: Workload) -> list[ExplainedStep]:
    """A step that decodes for everybody, and one that reads a prompt too."""
    running, context = max(round(deployment.served.num_running), 1), workload.average_context
    model = deployment.speed_model
    return [decode_step(model, running, context), mixed_step(model, running, context)]
