// What follows a recurrence: its output times an activation of a gate, with RMSNorm of each part of a row where there is one.
#include "../reduce.cuh"

enum class Activation { silu, sigmoid };

using Scalar = KVPLAN_SCALAR;
using Weight = KVPLAN_WEIGHT;
constexpr Activation ACTIVATION = Activation::KVPLAN_ACTIVATION;
constexpr bool HAS_NORM = KVPLAN_NORM;
constexpr bool IS_NORM_FIRST = KVPLAN_NORM_FIRST;  // the norm stands before the gate, else behind it
constexpr int THREADS = 128;

struct GateParams {
    // [rows, groups * width]  Scalar, rows x_stride elements apart
    void* x;
    // the same, rows gate_stride elements apart
    const void* gate;
    // [groups * width], or [width] with weight_stride 0  Weight; not read without a norm
    const void* weight;
    i64 x_stride;
    i64 gate_stride;
    int width;
    int weight_stride;
    float epsilon;
};

KVPLAN_INLINE float factor_of(float gate) {
    const float share = 1.0f / (1.0f + expf(-gate));
    return ACTIVATION == Activation::silu ? gate * share : share;
}

// grid (rows, groups), block THREADS.
KVPLAN_KERNEL(gate_rows, GateParams, THREADS) {
    const int group = int(blockIdx.y);
    Scalar* x = static_cast<Scalar*>(params.x) + i64(blockIdx.x) * params.x_stride + i64(group) * params.width;
    const Scalar* gate =
        static_cast<const Scalar*>(params.gate) + i64(blockIdx.x) * params.gate_stride + i64(group) * params.width;
    const Weight* weight = static_cast<const Weight*>(params.weight) + i64(group) * params.weight_stride;
    float scale = 1.0f;
    if constexpr (HAS_NORM) {
        float squares = 0.0f;
        for (int i = int(threadIdx.x); i < params.width; i += THREADS) {
            const float value = to_float(x[i]) * (IS_NORM_FIRST ? 1.0f : factor_of(to_float(gate[i])));
            squares += value * value;
        }
        scale = 1.0f / sqrtf(sum_over_block<THREADS>(squares) / float(params.width) + params.epsilon);
    }
    for (int i = int(threadIdx.x); i < params.width; i += THREADS) {
        const float value = to_float(x[i]) * factor_of(to_float(gate[i])) * scale;
        x[i] = from_float<Scalar>(HAS_NORM ? value * to_float(weight[i]) : value);
    }
}
