// The index of the largest logit of each row: the lowest on ties, and a NaN counts as largest, as torch.argmax has it.
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int THREADS = 1024;
constexpr int COUNT = KVPLAN_VECTORS ? Pack<Scalar>::SIZE : 1;
using Part = Elements<Scalar, COUNT>;

struct ArgmaxParams {
    // [rows, width]  Scalar, rows `stride` elements apart
    const void* logits;
    // [rows]  int64
    i64* out;
    i64 stride;
    int width;
};

struct Best {
    float value;
    int index;
};

KVPLAN_INLINE bool wins(const Best& challenger, const Best& holder) {
    const bool challenger_nan = challenger.value != challenger.value, holder_nan = holder.value != holder.value;
    if (challenger_nan != holder_nan) return challenger_nan;
    if (challenger_nan || challenger.value == holder.value) return challenger.index < holder.index;
    return challenger.value > holder.value;
}

KVPLAN_INLINE Best best_of_warp(Best best) {
    for (int mask = 1; mask < WARP_LANES; mask *= 2) {
        const Best other = {__shfl_xor_sync(FULL_WARP, best.value, mask), __shfl_xor_sync(FULL_WARP, best.index, mask)};
        if (wins(other, best)) best = other;
    }
    return best;
}

// grid (rows), block THREADS.
KVPLAN_KERNEL(argmax_rows, ArgmaxParams, THREADS) {
    __shared__ Best winners[WARP_LANES];
    const Scalar* row = static_cast<const Scalar*>(params.logits) + i64(blockIdx.x) * params.stride;
    Best best = {minus_infinity(), 0x7FFFFFFF};
    const int whole = params.width / COUNT * COUNT;
    for (int start = int(threadIdx.x) * COUNT; start < whole; start += THREADS * COUNT) {
        const Part part = Part::load(row + start);
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i) {
            const Best candidate = {part.values[i], start + i};
            if (wins(candidate, best)) best = candidate;
        }
    }
    if (whole + int(threadIdx.x) < params.width) {
        const Best candidate = {to_float(row[whole + int(threadIdx.x)]), whole + int(threadIdx.x)};
        if (wins(candidate, best)) best = candidate;
    }
    best = best_of_warp(best);
    if (threadIdx.x % WARP_LANES == 0) winners[threadIdx.x / WARP_LANES] = best;
    __syncthreads();
    if (threadIdx.x >= WARP_LANES) return;
    best = best_of_warp(winners[threadIdx.x]);
    if (threadIdx.x == 0) params.out[blockIdx.x] = best.index;
}
