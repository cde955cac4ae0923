"""Decoders from before Llama: learned or ALiBi positions, layer norms with biases, their own config keys."""

from __future__ import annotations

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.body import Body, read_sizes, read_tied
from kvplan.catalog.parts import AttentionTraits, attention, feed_forward, norms, outside
from kvplan.catalog.spec import LayerSpec


def read_gpt2(view: ConfigView) -> Body:
    """GPT-2: n_embd, n_head, n_layer, learned positions, biases everywhere, head tied to the embedding."""
    sizes = read_sizes(view)
    intermediate = view.integer("n_inner", default=4 * sizes.hidden)
    positions = view.integer("n_positions", "n_ctx")
    layer = LayerSpec(
        attention(
            sizes.hidden,
            sizes.heads,
            sizes.kv_heads,
            sizes.head,
            traits=AttentionTraits.biased(True, True, name="attn"),
        ),
        None,
        feed_forward(sizes.hidden, intermediate, gated=False, bias=True),
        norms(2, sizes.hidden, bias=True),
    )
    tied = read_tied(view, default=True)
    return Body(
        layers=(layer,) * sizes.layers,
        tensors=outside(sizes.hidden, sizes.vocab, tied=tied, positions=positions, norm_bias=True),
        hidden_size=sizes.hidden,
        vocab_size=sizes.vocab,
        tied=tied,
        max_position_embeddings=positions,
    )
