// What a write kernel does with the elements of a head: reads and writes them by vectors, rotates pairs of these.
//
// Rotation pairs element i with i + ROTARY / 2 (NeoX halves):  (a, b) -> (a cos - b sin, b cos + a sin).
#pragma once

#include "../../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
using Cache = KVPLAN_CACHE;
constexpr int HEAD_SIZE = KVPLAN_HEAD_SIZE;
constexpr int BLOCK_SIZE = KVPLAN_BLOCK_SIZE;
#ifdef KVPLAN_VALUE_SIZE
constexpr int VALUE_SIZE = KVPLAN_VALUE_SIZE;  // 0: a value is the beginning of its key
#else
constexpr int VALUE_SIZE = HEAD_SIZE;
#endif
constexpr bool HAS_SCALES = IS_SCALED<Cache>;
constexpr int ROTARY = KVPLAN_ROTARY;  // leading elements of a head that rotate; 0: none
// Elements that one thread handles at a time: whole vectors of 16 bytes, where half a rotation is made of them.
constexpr int VECTOR = ROTARY % 16 == 0 ? 8 : ROTARY % 8 == 0 ? 4 : 1;
constexpr int THREADS = 128;
constexpr int HEAD_VECTORS = HEAD_SIZE / VECTOR;
constexpr int VALUE_VECTORS = VALUE_SIZE / VECTOR;
constexpr int HALF_VECTORS = ROTARY / 2 / VECTOR;
// The rotating threads take a vector and its partner half a rotation away; the rest of a head takes one vector each.
constexpr int WORK_PER_HEAD = HEAD_VECTORS - HALF_VECTORS;

static_assert(HEAD_SIZE % 8 == 0 && VALUE_SIZE % 8 == 0 && ROTARY % (2 * VECTOR) == 0 && ROTARY <= HEAD_SIZE);

struct Vector {
    float elements[VECTOR];
};

KVPLAN_INLINE Vector read_vector(const Scalar* source) {
    Vector result;
    constexpr int PACK = 16 / int(sizeof(Scalar));
    if constexpr (VECTOR % PACK != 0) {
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) result.elements[i] = to_float(source[i]);
    } else {
        KVPLAN_UNROLL
        for (int p = 0; p < VECTOR / PACK; ++p) {
            const Pack<Scalar> pack = load_pack(source + p * PACK);
            KVPLAN_UNROLL
            for (int i = 0; i < PACK; ++i) result.elements[p * PACK + i] = to_float(pack.elements[i]);
        }
    }
    return result;
}

template <typename T>
KVPLAN_INLINE void write_vector(T* target, const Vector& source, float factor) {
    if constexpr (VECTOR * sizeof(T) % 16 != 0 && VECTOR < 8) {
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) target[i] = from_float<T>(source.elements[i] * factor);
    } else if constexpr (sizeof(T) == 1) {
        union {
            uint2 vector;
            T elements[VECTOR];
        } pack;
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) pack.elements[i] = from_float<T>(source.elements[i] * factor);
        store_vector<uint2>(target, pack.vector);
    } else {
        constexpr int PACK = 16 / int(sizeof(T));
        KVPLAN_UNROLL
        for (int p = 0; p < VECTOR / PACK; ++p) {
            Pack<T> pack;
            KVPLAN_UNROLL
            for (int i = 0; i < PACK; ++i) pack.elements[i] = from_float<T>(source.elements[p * PACK + i] * factor);
            store_pack(target + p * PACK, pack);
        }
    }
}

// Rotates elements [start, start + VECTOR) of the first half with their partners in the second.
KVPLAN_INLINE void rotate(Vector& first, Vector& second, const float* cosines, int start) {
    constexpr int PART = smaller(VECTOR, Pack<float>::SIZE);
    KVPLAN_UNROLL
    for (int p = 0; p < VECTOR; p += PART) {
        using Angles = Elements<float, PART>;
        const Angles cosine = Angles::load(cosines + start + p), sine = Angles::load(cosines + ROTARY / 2 + start + p);
        KVPLAN_UNROLL
        for (int i = 0; i < PART; ++i) {
            const float a = first.elements[p + i], b = second.elements[p + i];
            first.elements[p + i] = a * cosine.values[i] - b * sine.values[i];
            second.elements[p + i] = b * cosine.values[i] + a * sine.values[i];
        }
    }
}
