// The element-wise middle of a feed-forward layer: SiLU times up, and the two GELUs.
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int THREADS = 256;
constexpr int COUNT = KVPLAN_VECTORS ? Pack<Scalar>::SIZE : 1;
using Part = Elements<Scalar, COUNT>;

struct ActivationParams {
    // [rows, width] Scalar; for silu_and_mul [rows, 2 width], the gate beside up
    const void* x;
    // [rows, width] Scalar; may be x itself (the gate's half of it)
    void* out;
    i64 x_stride;
    i64 out_stride;
    int width;
};

// Where this thread's elements start, in elements from the row's start; at or past the width: none.
KVPLAN_INLINE int own_start() { return (int(blockIdx.y) * THREADS + int(threadIdx.x)) * COUNT; }

KVPLAN_INLINE const Scalar* input_row(const ActivationParams& params) {
    return static_cast<const Scalar*>(params.x) + i64(blockIdx.x) * params.x_stride;
}

KVPLAN_INLINE Scalar* output_row(const ActivationParams& params) {
    return static_cast<Scalar*>(params.out) + i64(blockIdx.x) * params.out_stride;
}

KVPLAN_INLINE float gelu_by_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

KVPLAN_INLINE float gelu_by_erf(float x) { return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f)); }

// grid (rows, ceil(width / (THREADS * COUNT))), block THREADS.
KVPLAN_KERNEL(silu_and_mul, ActivationParams, THREADS) {
    const int start = own_start();
    if (start >= params.width) return;
    const Part gate = Part::load(input_row(params) + start), up = Part::load(input_row(params) + params.width + start);
    Part result;
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) result.values[i] = gate.values[i] / (1.0f + expf(-gate.values[i])) * up.values[i];
    Part::store(output_row(params) + start, result);
}

KVPLAN_KERNEL(gelu_tanh, ActivationParams, THREADS) {
    const int start = own_start();
    if (start >= params.width) return;
    Part part = Part::load(input_row(params) + start);
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) part.values[i] = gelu_by_tanh(part.values[i]);
    Part::store(output_row(params) + start, part);
}

KVPLAN_KERNEL(gelu_erf, ActivationParams, THREADS) {
    const int start = own_start();
    if (start >= params.width) return;
    Part part = Part::load(input_row(params) + start);
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) part.values[i] = gelu_by_erf(part.values[i]);
    Part::store(output_row(params) + start, part);
}
