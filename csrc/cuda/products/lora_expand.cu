// The second half of a LoRA correction: out += inner B, for every group of rows.
//
// A thread has VECTOR outputs of all rows of its group, and reads B's column of vectors from top to bottom. Vectors end
// where stacked products do.
#include "lora.cuh"

constexpr int THREADS = 128;

struct Inner {
    union {
        float4 halves[ROWS / 4];
        float values[ROWS];
    };
};

// grid (ceil(outputs / (THREADS * VECTOR)), groups), block THREADS.
KVPLAN_KERNEL(lora_expand, LoraParams, THREADS) {
    const int slot = params.slots[blockIdx.y];
    const int output = (int(blockIdx.x) * THREADS + int(threadIdx.x)) * VECTOR;
    if (slot < 0 || output >= params.outputs) return;
    int product = 0;
    while (output >= params.ends[product]) ++product;
    const int count = rows_of_group(params);
    const float* inner = params.inner + (i64(blockIdx.y) * params.stacked + product) * params.rank * ROWS;
    const Scalar* up = static_cast<const Scalar*>(params.up) + i64(slot) * params.rank * params.outputs + output;
    float sums[ROWS][VECTOR] = {};
    KVPLAN_UNROLL_BY(4)
    for (int k = 0; k < params.rank; ++k) {
        const auto weights = Elements<Scalar, VECTOR>::load(up + i64(k) * params.outputs);
        Inner factors;
        KVPLAN_UNROLL
        for (int half = 0; half < ROWS / 4; ++half) factors.halves[half] = load_vector<float4>(inner + k * ROWS + half * 4);
        KVPLAN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            KVPLAN_UNROLL
            for (int i = 0; i < VECTOR; ++i) sums[r][i] += factors.values[r] * weights.values[i];
        }
    }
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        if (r >= count) continue;
        const i64 row = params.rows[i64(blockIdx.y) * ROWS + r];
        Scalar* out = static_cast<Scalar*>(params.out) + row * params.out_stride + output;
        auto before = Elements<Scalar, VECTOR>::load(out);
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) before.values[i] += sums[r][i];
        Elements<Scalar, VECTOR>::store(out, before);
    }
}
