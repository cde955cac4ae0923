// What follows the product of an MLP's first weight, by enum kvplan_activation.
#pragma once

#include "../include/kvplan_cpu.h"
#include "simd_math.h"

namespace kvplan {

inline bool is_gated(int activation) {
  return activation == KVPLAN_SILU_AND_MUL || activation == KVPLAN_GELU_TANH_AND_MUL ||
         activation == KVPLAN_SWIGLU_OAI;
}

KVPLAN_INLINE Floats activated(Floats value, int activation) {
  switch (activation) {
    case KVPLAN_GELU_TANH: return gelu_tanh(value);
    case KVPLAN_GELU_ERF: return gelu_erf(value);
    case KVPLAN_RELU_SQUARED: {
      const Floats positive = maximum(value, Floats{});
      return positive * positive;
    }
    default: return value;
  }
}

// `limit` is swiglu_oai's alone: the gate is cut off above it, the up half on both sides.
KVPLAN_INLINE Floats gated(Floats gate, Floats up, int activation, float limit) {
  switch (activation) {
    case KVPLAN_GELU_TANH_AND_MUL: return gelu_tanh(gate) * up;
    case KVPLAN_SWIGLU_OAI: {
      const Floats most = splat(limit);
      const Floats cut_gate = gate > most ? most : gate;
      const Floats below = up > most ? most : up;
      const Floats cut_up = below < -most ? -most : below;
      return (cut_up + 1.0f) * (cut_gate * sigmoid(1.702f * cut_gate));
    }
    default: return silu(gate) * up;
  }
}

}  // namespace kvplan
