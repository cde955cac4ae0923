// The CUDA words that the kernels use, for a host compiler: vector types, indices, barriers, shuffles, atomics.
#pragma once

#include <math.h>
#include <string.h>

#include "emulation.hpp"

#define __shared__ static thread_local
#define __restrict__ __restrict
#define threadIdx (kvplan_host::thread_index())
#define blockIdx (kvplan_host::block_index())
#define blockDim (kvplan_host::block_size())
#define gridDim (kvplan_host::grid_size())

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

inline void __syncthreads() { kvplan_host::block_barrier(); }
inline void __threadfence() {}

namespace kvplan_host {

inline void exchange_nothing(Slots&) {}

struct ShuffleSlot {
    unsigned value;
    int source;
};

inline void exchange_shuffle(Slots& slots) {
    unsigned values[WARP_SIZE];
    for (int lane = 0; lane < WARP_SIZE; ++lane) values[lane] = slot<ShuffleSlot>(slots, lane)->value;
    for (int lane = 0; lane < WARP_SIZE; ++lane) {
        ShuffleSlot* own = slot<ShuffleSlot>(slots, lane);
        own->value = values[own->source & (WARP_SIZE - 1)];
    }
}

template <typename T>
T shuffle_from(T value, int source) {
    static_assert(sizeof(T) == 4);
    ShuffleSlot exchange{};
    memcpy(&exchange.value, &value, 4);
    exchange.source = source;
    warp_meet(&exchange, sizeof(exchange), exchange_shuffle);
    memcpy(&value, &exchange.value, 4);
    return value;
}

inline void exchange_any(Slots& slots) {
    int any = 0;
    for (int lane = 0; lane < WARP_SIZE; ++lane) any |= *slot<int>(slots, lane);
    for (int lane = 0; lane < WARP_SIZE; ++lane) *slot<int>(slots, lane) = any;
}

}  // namespace kvplan_host

inline void __syncwarp() {
    int nothing = 0;
    kvplan_host::warp_meet(&nothing, sizeof(nothing), kvplan_host::exchange_nothing);
}

template <typename T>
T __shfl_sync(unsigned, T value, int source) {
    return kvplan_host::shuffle_from(value, source);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return kvplan_host::shuffle_from(value, kvplan_host::lane_index() ^ mask);
}

template <typename T>
T __shfl_up_sync(unsigned, T value, int delta) {
    const int lane = kvplan_host::lane_index();
    return kvplan_host::shuffle_from(value, lane >= delta ? lane - delta : lane);
}

inline int __any_sync(unsigned, int predicate) {
    int any = predicate != 0;
    kvplan_host::warp_meet(&any, sizeof(any), kvplan_host::exchange_any);
    return any;
}

inline int atomicAdd(int* address, int value) {
    const int before = *address;
    *address += value;
    return before;
}
