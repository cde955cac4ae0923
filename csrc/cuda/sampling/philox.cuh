// Random numbers without a state: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
#pragma once

#include "../types.cuh"

constexpr int PHILOX_WORDS = 4;

struct RandomWords {
    u32 words[PHILOX_WORDS];
};

// Four words of 32 random bits, the same for the same key and counters.
KVPLAN_INLINE RandomWords philox(u64 key, u32 first, u32 second) {
    u32 a = first, b = second, c = 0, d = 0, low = u32(key), high = u32(key >> 32);
    KVPLAN_UNROLL
    for (int round = 0; round < 10; ++round) {
        const u64 one = u64(0xD2511F53u) * a, other = u64(0xCD9E8D57u) * c;
        a = u32(other >> 32) ^ b ^ low;
        b = u32(other);
        c = u32(one >> 32) ^ d ^ high;
        d = u32(one);
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

KVPLAN_INLINE float log2_of(float x) {
#if defined(KVPLAN_HOST)
    return log2f(x);
#else
    float result;
    asm("lg2.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
#endif
}

// log2 of a number with the exponential distribution, from 32 random bits: between -33 and 4.06. The distribution's
// small numbers, which win races, are as finely divided as floats are; its large ones end at -ln(2^-24).
KVPLAN_INLINE float log2_of_waiting(u32 bits) {
    constexpr float UNIT = 1.0f / 4294967296.0f, ALMOST_ONE = 1.0f - 1.0f / 16777216.0f;
    const float share = smaller((float(bits) + 0.5f) * UNIT, ALMOST_ONE);
    return log2_of(-log1pf(-share));
}
