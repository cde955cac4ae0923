// Sums over a block, and rows read either 16 bytes at a time or element by element.
#pragma once

#include "types.cuh"

// The sum over all THREADS threads, in every thread; the order of additions depends on THREADS alone.
template <int THREADS>
KVPLAN_INLINE float sum_over_block(float value) {
    constexpr int WARPS_OF_BLOCK = THREADS / WARP_LANES;
    __shared__ float sums[WARPS_OF_BLOCK];
    for (int mask = 1; mask < WARP_LANES; mask *= 2) value += __shfl_xor_sync(FULL_WARP, value, mask);
    __syncthreads();  // the last use of sums is over
    if (threadIdx.x % WARP_LANES == 0) sums[threadIdx.x / WARP_LANES] = value;
    __syncthreads();
    float total = 0.0f;
    KVPLAN_UNROLL
    for (int w = 0; w < WARPS_OF_BLOCK; ++w) total += sums[w];
    return total;
}

// COUNT neighbouring elements as floats; COUNT is 1 or a whole vector.
template <typename T, int COUNT>
struct Elements {
    float values[COUNT];

    KVPLAN_INLINE Elements load(const T* source) {
        Elements result;
        if constexpr (COUNT == 1) {
            result.values[0] = to_float(*source);
        } else {
            const Pack<T> pack = load_pack(source);
            KVPLAN_UNROLL
            for (int i = 0; i < COUNT; ++i) result.values[i] = to_float(pack.elements[i]);
        }
        return result;
    }

    KVPLAN_INLINE void store(T* target, const Elements& elements) {
        if constexpr (COUNT == 1) {
            *target = from_float<T>(elements.values[0]);
        } else {
            Pack<T> pack;
            KVPLAN_UNROLL
            for (int i = 0; i < COUNT; ++i) pack.elements[i] = from_float<T>(elements.values[i]);
            store_pack(target, pack);
        }
    }
};
