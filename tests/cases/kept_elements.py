"""What each layer of a model keeps, as vLLM's classes were counted."""

from __future__ import annotations

from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention, StateMixer

Kept = list[tuple[str, int, int | None]]


def kept(spec: ModelSpec) -> Kept:
    """Of each layer: elements of a token or of a state, and its window."""
    found: Kept = []
    for layer in spec.layers:
        match layer.mixer:
            case SoftmaxAttention() as mixer:
                found.append(("softmax", mixer.cache_elements_per_token, mixer.window_tokens))
            case LatentAttention() as mixer:
                found.append(("latent", mixer.cache_elements_per_token, None))
            case StateMixer() as mixer:
                heads, rows, columns = mixer.recurrent_shape
                found.append(("state", heads * rows * columns, None))
    return found
