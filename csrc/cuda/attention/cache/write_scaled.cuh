// Writing into a cache of integers with scales: a warp takes a head, whose scale it must know before the first integer.
//
// A head's scale is its largest magnitude / 127, its integers are the values / scale, rounded to nearest, ties to even;
// all 0 where the scale is 0, and where a value is not finite, which makes the scale a NaN. The scales of a page lie
// behind its integers: page[kv head][offset in block][element], then float32 [kv head][offset in block].
#pragma once

#include "write_rows.cuh"

// What one lane holds of a head: one vector, or one of the first half of the rotation and its partner.
struct HeadPart {
    Vector first, second;
    int start, partner;  // element of each; partner -1: there is none
};

// Part `part` of a head's SIZE elements, of which the first PAIRS vectors rotate with the PAIRS behind them.
template <int PAIRS>
KVPLAN_INLINE HeadPart read_part(const Scalar* source, const float* cosines, int part) {
    HeadPart result = {};
    if (part < PAIRS) {
        result.start = part * VECTOR, result.partner = result.start + ROTARY / 2;
        result.first = read_vector(source + result.start), result.second = read_vector(source + result.partner);
        rotate(result.first, result.second, cosines, result.start);
    } else {
        result.start = (part + PAIRS) * VECTOR, result.partner = -1;
        result.first = read_vector(source + result.start);
    }
    return result;
}

KVPLAN_INLINE void see_magnitudes(const Vector& vector, float& largest, float& poison) {
    KVPLAN_UNROLL
    for (int i = 0; i < VECTOR; ++i) {
        largest = maximum(float_from_bits(bits_from_float(vector.elements[i]) & 0x7FFFFFFFu), largest);
        poison += vector.elements[i] * 0.0f;  // a NaN from an infinity on
    }
}

template <typename T>
KVPLAN_INLINE void write_steps(T* target, Vector vector, float scale) {
    KVPLAN_UNROLL
    for (int i = 0; i < VECTOR; ++i) {
        const float steps = scale > 0.0f ? vector.elements[i] / scale : 0.0f;
        // a scale with few bits left may make more than 127 of them
        vector.elements[i] = steps > 127.0f ? 127.0f : steps < -127.0f ? -127.0f : steps;
    }
    write_vector(target, vector, 1.0f);
}

// One head of one token by one warp: SIZE elements at `target`, and their scale.
template <int SIZE, int PAIRS, typename T>
KVPLAN_INLINE void quantise_head(const Scalar* source, T* target, float* scale, const float* cosines, int lane) {
    constexpr int PARTS = SIZE / VECTOR - PAIRS;
    float largest = 0.0f, poison = 0.0f;
    for (int part = lane; part < PARTS; part += WARP_LANES) {
        const HeadPart own = read_part<PAIRS>(source, cosines, part);
        see_magnitudes(own.first, largest, poison);
        if (own.partner >= 0) see_magnitudes(own.second, largest, poison);
    }
    for (int mask = 1; mask < WARP_LANES; mask *= 2) {
        largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
        poison += __shfl_xor_sync(FULL_WARP, poison, mask);
    }
    const float found = largest / 127.0f + poison;
    if (lane == 0) *scale = found;
    for (int part = lane; part < PARTS; part += WARP_LANES) {
        const HeadPart own = read_part<PAIRS>(source, cosines, part);
        write_steps(target + own.start, own.first, found);
        if (own.partner >= 0) write_steps(target + own.partner, own.second, found);
    }
}

// All KV heads of one token, by all warps of the block. page: of the slot's block; offset: in it.
template <int SIZE, int PAIRS, typename T>
KVPLAN_INLINE void quantise_heads(const Scalar* source, T* page, int offset, int num_kv_heads, const float* cosines) {
    float* scales = reinterpret_cast<float*>(page + i64(num_kv_heads) * BLOCK_SIZE * SIZE);
    const int lane = int(threadIdx.x) % WARP_LANES;
    for (int head = int(threadIdx.x) / WARP_LANES; head < num_kv_heads; head += THREADS / WARP_LANES) {
        const i64 row = i64(head) * BLOCK_SIZE + offset;
        quantise_head<SIZE, PAIRS>(source + head * SIZE, page + row * SIZE, scales + row, cosines, lane);
    }
}
