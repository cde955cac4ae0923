// Adds what a row's experts gave, each with its weight, in the order of the row's choices, the shared expert last.
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int COUNT = 4;  // outputs of a thread
constexpr int THREADS = 128;
using Sums = Elements<float, COUNT>;

struct SumParams {
    // [rows, top_k]  -1: an expert that is not here, of whose products nothing is read
    const int* experts;
    // [rows * top_k, num_outputs]  float32
    const float* products;
    // [rows, num_outputs]  float32; null without a shared expert
    const float* shared;
    // [rows, top_k]
    const float* shares;
    // [rows]
    const float* shared_shares;
    // [rows, num_outputs]  Scalar, rows out_stride elements apart
    void* out;
    i64 out_stride;
    int top_k;
    int num_outputs;  // a multiple of COUNT
};

KVPLAN_INLINE void add(Sums& total, float share, const float* products) {
    const Sums sums = Sums::load(products);
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) total.values[i] += share * sums.values[i];
}

// grid (rows, ceil(num_outputs / (THREADS * COUNT))), block THREADS.
KVPLAN_KERNEL(sum_experts, SumParams, THREADS) {
    const int row = int(blockIdx.x), start = (int(blockIdx.y) * THREADS + int(threadIdx.x)) * COUNT;
    if (start >= params.num_outputs) return;
    Sums total = {};
    for (int k = 0; k < params.top_k; ++k) {
        const i64 pair = i64(row) * params.top_k + k;
        if (params.experts[pair] < 0) continue;
        add(total, params.shares[pair], params.products + pair * params.num_outputs + start);
    }
    if (params.shared != nullptr)
        add(total, params.shared_shares[row], params.shared + i64(row) * params.num_outputs + start);
    Scalar* out = static_cast<Scalar*>(params.out) + row * params.out_stride + start;
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) out[i] = from_float<Scalar>(total.values[i]);
}
