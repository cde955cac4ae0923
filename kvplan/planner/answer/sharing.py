"""What a deployment's prefix cache finds of a load, in a sentence and as JSON."""

from __future__ import annotations

from typing import Any

from kvplan.planner.choices.deployment import PlannedDeployment


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
