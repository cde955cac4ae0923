// The activations of an MLP as they follow a product: which one, and whether a gate is multiplied with it, is decided when a
// file is compiled.
#pragma once

#include "types.cuh"

enum class Activation { none, silu, gelu, gelu_tanh, relu, relu2, swiglu_oai };
constexpr Activation ACTIVATION = Activation::KVPLAN_ACTIVATION;
constexpr bool IS_GATED = KVPLAN_GATED;
constexpr int HALVES = IS_GATED ? 2 : 1;  // rows of the weight for one output: the gate's, then up's

KVPLAN_INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

KVPLAN_INLINE float activate(float x) {
    if constexpr (ACTIVATION == Activation::silu) return x * sigmoid(x);
    if constexpr (ACTIVATION == Activation::gelu) return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    if constexpr (ACTIVATION == Activation::gelu_tanh)
        return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    if constexpr (ACTIVATION == Activation::relu) return larger(x, 0.0f);
    if constexpr (ACTIVATION == Activation::relu2) return larger(x, 0.0f) * larger(x, 0.0f);
    return x;
}

// What is stored for the two products of an output; without a gate the second one is not looked at.
KVPLAN_INLINE float finish(float product, float up, float limit) {
    if constexpr (ACTIVATION == Activation::swiglu_oai) {
        const float gate = smaller(product, limit), bounded = larger(-limit, smaller(up, limit));
        return (bounded + 1.0f) * gate * sigmoid(1.702f * gate);
    }
    return IS_GATED ? activate(product) * up : activate(product);
}
