// The first half of a LoRA correction: inner = x A^T, for every group of rows.
//
// The threads of a block share the inputs: A has few rows, and each is read by a whole block at once. Behind long prompts
// there are many groups, and a block takes several rows of A with the x that it reads.
#include "lora.cuh"

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int OUTPUTS = KVPLAN_OUTPUTS;  // rows of A of a block

struct Sums {
    float values[ROWS][OUTPUTS];
};

KVPLAN_INLINE Sums multiply(int slot, int first, int count, const LoraParams& params) {
    const int* numbers = params.rows + i64(blockIdx.y) * ROWS;
    const int num_outputs = params.stacked * params.rank;
    int rows[ROWS];  // numbers take half the registers of pointers, of which the compiler for 12.0 kept some in memory
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) rows[r] = numbers[r < count ? r : 0];
    const Scalar* inputs = static_cast<const Scalar*>(params.x);
    const Scalar* down = static_cast<const Scalar*>(params.down) + i64(slot) * num_outputs * params.inputs;
    Sums sums = {};
    for (int k = int(threadIdx.x) * VECTOR; k < params.inputs; k += THREADS * VECTOR) {
        Elements<Scalar, VECTOR> weights[OUTPUTS];
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o) {
            const i64 row = smaller(first + o, num_outputs - 1);
            weights[o] = Elements<Scalar, VECTOR>::load(down + row * params.inputs + k);
        }
        KVPLAN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            if (r >= count) continue;
            const auto x = Elements<Scalar, VECTOR>::load(inputs + rows[r] * params.x_stride + k);
            KVPLAN_UNROLL
            for (int o = 0; o < OUTPUTS; ++o) {
                KVPLAN_UNROLL
                for (int i = 0; i < VECTOR; ++i) sums.values[r][o] += x.values[i] * weights[o].values[i];
            }
        }
    }
    return sums;
}

// grid (ceil(stacked * rank / OUTPUTS), groups), block THREADS.
KVPLAN_KERNEL(lora_shrink, LoraParams, THREADS) {
    const int slot = params.slots[blockIdx.y];
    if (slot < 0) return;
    const int first = int(blockIdx.x) * OUTPUTS, count = rows_of_group(params);
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    Sums sums = multiply(slot, first, count, params);
    __shared__ Sums of_warps[WARPS];
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        KVPLAN_UNROLL
        for (int o = 0; o < OUTPUTS; ++o) {
            for (int mask = 1; mask < WARP_LANES; mask *= 2)
                sums.values[r][o] += __shfl_xor_sync(FULL_WARP, sums.values[r][o], mask);
            if (lane == 0) of_warps[warp].values[r][o] = sums.values[r][o];
        }
    }
    __syncthreads();
    const int own = int(threadIdx.x), output = first + own / ROWS;
    if (own >= ROWS * OUTPUTS || output >= params.stacked * params.rank) return;
    float total = 0.0f;
    KVPLAN_UNROLL
    for (int w = 0; w < WARPS; ++w) total += of_warps[w].values[own % ROWS][own / ROWS];
    params.inner[(i64(blockIdx.y) * params.stacked * params.rank + output) * ROWS + own % ROWS] = total;
}
