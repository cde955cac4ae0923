"""Small models as vLLM builds them, listed by hand: modules with their prefixes, classes and the shards they load.

``check_against_transformers`` compares the lists with the models that transformers builds on the meta device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

ModuleClass = Literal["LinearBase", "RoutedExperts", "ParallelLMHead", "VocabParallelEmbedding"]
Shard = tuple[str, int, int]
"""Its name in the checkpoint, its outputs and inputs."""

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_SIZE = 256, 512, 512, 4, 2, 64
EXPERTS, EXPERT_INNER = 4, 128
PACKED = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
    "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"],
    "in_proj_qkvz": ["in_proj_qkv", "in_proj_z"],
    "in_proj_ba": ["in_proj_b", "in_proj_a"],
}


@dataclass(frozen=True)
class ServedModule:
    """One module of vLLM. ``prefix`` is vLLM's; ``copies``: how many experts have these shards."""

    prefix: str
    kind: ModuleClass
    shards: tuple[Shard, ...]
    copies: int = 1

    @property
    def num_elements(self) -> int:
        return self.copies * sum(rows * inputs for _, rows, inputs in self.shards)

    def checkpoint_names(self, published: str, served: str) -> list[str]:
        """Names of its matrices in a checkpoint whose prefix ``published`` vLLM calls ``served``."""
        own = self.prefix.replace(served, published, 1) if self.prefix.startswith(served) else self.prefix
        if self.kind == "RoutedExperts":
            return [f"{own}.{expert}.{name}" for expert in range(self.copies) for name, _, _ in self.shards]
        if self.kind != "LinearBase":
            return ["lm_head" if self.kind == "ParallelLMHead" else own]
        return [f"{own.rpartition('.')[0]}.{name}" for name, _, _ in self.shards]


@dataclass(frozen=True)
class SmallModel:
    """``rest``: elements of everything that is no module here: norms, routers, convolutions."""

    name: str
    config: dict[str, Any]
    modules: tuple[ServedModule, ...]
    rest: int
    published: str = "model."
    served: str = "model."

    def names(self) -> list[str]:
        return [name for module in self.modules for name in module.checkpoint_names(self.published, self.served)]


def _linear(prefix: str, *shards: Shard) -> ServedModule:
    return ServedModule(prefix, "LinearBase", shards)


def _attention(prefix: str) -> Iterator[ServedModule]:
    query, key = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    yield _linear(f"{prefix}.qkv_proj", ("q_proj", query, HIDDEN), ("k_proj", key, HIDDEN), ("v_proj", key, HIDDEN))
    yield _linear(f"{prefix}.o_proj", ("o_proj", HIDDEN, query))


def _mlp(prefix: str, inner: int = INNER) -> Iterator[ServedModule]:
    yield _linear(f"{prefix}.gate_up_proj", ("gate_proj", inner, HIDDEN), ("up_proj", inner, HIDDEN))
    yield _linear(f"{prefix}.down_proj", ("down_proj", HIDDEN, inner))


def _experts(prefix: str) -> ServedModule:
    shards = (
        ("gate_proj", EXPERT_INNER, HIDDEN),
        ("up_proj", EXPERT_INNER, HIDDEN),
        ("down_proj", HIDDEN, EXPERT_INNER),
    )
    return ServedModule(prefix, "RoutedExperts", shards, EXPERTS)


def _ends(root: str = "model.", *, tied: bool = False, head: str = "lm_head") -> Iterator[ServedModule]:
    yield ServedModule(f"{root}embed_tokens", "VocabParallelEmbedding", (("embed_tokens", VOCAB, HIDDEN),))
    if not tied:
        yield ServedModule(head, "ParallelLMHead", (("lm_head", VOCAB, HIDDEN),))


_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "vocab_size": VOCAB,
    "num_hidden_layers": 12,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
LAYERS = 12


def llama() -> SmallModel:
    """A dense model; twelve layers, so that one number is the start of another."""
    modules = [*_ends()]
    for layer in range(LAYERS):
        modules += [*_attention(f"model.layers.{layer}.self_attn"), *_mlp(f"model.layers.{layer}.mlp")]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_SIZES}
    return SmallModel("llama", config, tuple(modules), (2 * LAYERS + 1) * HIDDEN)


def qwen3_moe() -> SmallModel:
    """A mixture whose first layer is dense."""
    modules, rest = [*_ends()], HIDDEN
    for layer in range(LAYERS):
        modules += _attention(f"model.layers.{layer}.self_attn")
        rest += 2 * HIDDEN + 2 * HEAD_SIZE
        if layer == 0:
            modules += _mlp("model.layers.0.mlp")
        else:
            modules.append(_experts(f"model.layers.{layer}.mlp.experts"))
            rest += EXPERTS * HIDDEN
    own = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_INNER,
           "mlp_only_layers": [0], "decoder_sparse_step": 1, "norm_topk_prob": True}  # fmt: skip
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **_SIZES, **own}
    return SmallModel("qwen3_moe", config, tuple(modules), rest)


def gemma3() -> SmallModel:
    """A wrapped and tied model: vLLM's names begin otherwise than the checkpoint's."""
    root = "language_model.model."
    modules = [*_ends(root, tied=True)]
    for layer in range(LAYERS):
        modules += [*_attention(f"{root}layers.{layer}.self_attn"), *_mlp(f"{root}layers.{layer}.mlp")]
    text = {**_SIZES, "model_type": "gemma3_text", "tie_word_embeddings": True, "sliding_window": 64,
            "sliding_window_pattern": 6, "query_pre_attn_scalar": HEAD_SIZE}  # fmt: skip
    vision = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
              "image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}  # fmt: skip
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
              "text_config": text, "vision_config": vision, "mm_tokens_per_image": 4}  # fmt: skip
    rest = LAYERS * (4 * HIDDEN + 2 * HEAD_SIZE) + HIDDEN
    return SmallModel("gemma3", config, tuple(modules), rest, published="model.language_model.", served=root)


def deepseek_v3() -> SmallModel:
    """Latent attention, whose two downward products vLLM merges; a dense layer, then experts and a shared one."""
    latent, rotary, query, nope, value = 128, 32, 128, 32, 64
    modules, rest = [*_ends()], HIDDEN
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn"
        down = (("q_a_proj", query, HIDDEN), ("kv_a_proj_with_mqa", latent + rotary, HIDDEN))
        modules += [
            _linear(f"{at}.fused_qkv_a_proj", *down),
            _linear(f"{at}.q_b_proj", ("q_b_proj", HEADS * (nope + rotary), query)),
            _linear(f"{at}.kv_b_proj", ("kv_b_proj", HEADS * (nope + value), latent)),
            _linear(f"{at}.o_proj", ("o_proj", HIDDEN, HEADS * value)),
        ]
        rest += 2 * HIDDEN + query + latent
        if layer == 0:
            modules += _mlp("model.layers.0.mlp")
        else:
            modules.append(_experts(f"model.layers.{layer}.mlp.experts"))
            modules += _mlp(f"model.layers.{layer}.mlp.shared_experts", EXPERT_INNER)
            rest += EXPERTS * HIDDEN + EXPERTS
    own = {"q_lora_rank": query, "kv_lora_rank": latent, "qk_rope_head_dim": rotary, "qk_nope_head_dim": nope,
           "v_head_dim": value, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2,
           "moe_intermediate_size": EXPERT_INNER, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
           "moe_layer_freq": 1, "num_nextn_predict_layers": 0}  # fmt: skip
    sizes = {key: value for key, value in _SIZES.items() if key != "head_dim"} | {"num_key_value_heads": HEADS}
    config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **sizes, **own}
    return SmallModel("deepseek_v3", config, tuple(modules), rest)


def nemotron_h() -> SmallModel:
    """States, attention, MLPs and ungated experts, one to a layer, in a checkpoint that calls its root backbone."""
    pattern, states, groups, state_size, kernel = "M*-EM*-EM*-E", 4, 2, 16, 4
    inner = states * HEAD_SIZE
    channels = inner + 2 * groups * state_size
    modules, rest = [*_ends()], HIDDEN
    for layer, kind in enumerate(pattern):
        at = f"model.layers.{layer}.mixer"
        rest += HIDDEN
        if kind == "M":
            rows = inner + channels + states
            modules.append(_linear(f"{at}.in_proj", ("in_proj", rows, HIDDEN)))
            modules.append(_linear(f"{at}.out_proj", ("out_proj", HIDDEN, inner)))
            rest += channels * kernel + channels + 3 * states + inner
        elif kind == "*":
            modules += _attention(at)
        elif kind == "-":
            modules.append(_linear(f"{at}.up_proj", ("up_proj", INNER, HIDDEN)))
            modules.append(_linear(f"{at}.down_proj", ("down_proj", HIDDEN, INNER)))
        else:
            shards = (("up_proj", EXPERT_INNER, HIDDEN), ("down_proj", HIDDEN, EXPERT_INNER))
            modules.append(ServedModule(f"{at}.experts", "RoutedExperts", shards, EXPERTS))
            shared = f"{at}.shared_experts"
            modules.append(_linear(f"{shared}.up_proj", ("up_proj", EXPERT_INNER, HIDDEN)))
            modules.append(_linear(f"{shared}.down_proj", ("down_proj", HIDDEN, EXPERT_INNER)))
            rest += EXPERTS * HIDDEN + EXPERTS
    own = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern), "mamba_num_heads": states,
           "mamba_head_dim": HEAD_SIZE, "n_groups": groups, "ssm_state_size": state_size, "conv_kernel": kernel,
           "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2, "use_conv_bias": True,
           "moe_intermediate_size": EXPERT_INNER, "moe_shared_expert_intermediate_size": EXPERT_INNER,
           "use_bias": False, "mlp_bias": False, "attention_bias": False, "mamba_proj_bias": False, "chunk_size": 16,
           "mlp_hidden_act": "relu2", "n_group": 1, "topk_group": 1, "expand": 1}  # fmt: skip
    config = {"architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", **_SIZES, **own}
    return SmallModel("nemotron_h", config, tuple(modules), rest, published="backbone.", served="model.")


MODELS = tuple(make() for make in (llama, qwen3_moe, gemma3, deepseek_v3, nemotron_h))


def check_against_transformers(model: SmallModel) -> tuple[int, int]:
    """Return the model's elements as listed here, and as transformers builds it."""
    from independent_count import count_independently

    counted = count_independently(model.config)
    listed = sum(module.num_elements for module in model.modules) + model.rest
    return listed, counted.num_parameters + counted.num_corrections
