// The largest value and its place: the lowest place on ties, and a NaN counts as largest, as torch.argmax has it.
#pragma once

#include "../platform.cuh"

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

// Loses to everything.
KVPLAN_INLINE Best no_best() { return {minus_infinity(), 0x7FFFFFFF}; }

KVPLAN_INLINE Best best_of_warp(Best best) {
    for (int mask = 1; mask < WARP_LANES; mask *= 2) {
        const Best other = {__shfl_xor_sync(FULL_WARP, best.value, mask), __shfl_xor_sync(FULL_WARP, best.index, mask)};
        if (wins(other, best)) best = other;
    }
    return best;
}

// The best of all THREADS threads, in every thread.
template <int THREADS>
KVPLAN_INLINE Best best_of_block(Best best) {
    constexpr int WARPS_OF_BLOCK = THREADS / WARP_LANES;
    __shared__ Best winners[WARPS_OF_BLOCK];
    best = best_of_warp(best);
    __syncthreads();  // the last use of winners is over
    if (threadIdx.x % WARP_LANES == 0) winners[threadIdx.x / WARP_LANES] = best;
    __syncthreads();
    best = winners[0];
    for (int w = 1; w < WARPS_OF_BLOCK; ++w) {
        if (wins(winners[w], best)) best = winners[w];
    }
    return best;
}
