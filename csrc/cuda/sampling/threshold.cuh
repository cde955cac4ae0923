// Top-k and top-p without a sort: the smallest distance from the likeliest token within which there are k tokens, or a
// share of the probability. Each pass over the row divides the distances that are left by 8, at most 11 times.
//
// Sums are of integers, so they do not depend on the order of additions: the same row keeps the same tokens whatever
// else runs. A token's weight is 2^28 times its probability over the likeliest one's, rounded.
#pragma once

#include "row.cuh"

constexpr int BUCKETS = 8;
constexpr float WEIGHT_BITS = 28.0f;
constexpr u32 LARGEST_FINITE = 0x7F7FFFFFu;
static_assert(UNIT <= 8, "weights of a unit are added in 32 bits");

// Of tokens by their distances, as the bits of these floats, which are ordered as the floats are: none is negative.
struct Interval {
    u32 first;
    u32 last;
};

// Buckets of 2^shift numbers each, and no more than there are.
KVPLAN_INLINE int bucket_shift(const Interval& interval) {
    int shift = 0;
    while ((interval.last - interval.first) >> shift >= u32(BUCKETS)) ++shift;
    return shift;
}

// sums[j]: the weights of buckets 0 to j. smallest, largest: of the distances in the interval.
struct Tally {
    u64 sums[BUCKETS];
    u32 smallest;
    u32 largest;
};

template <bool BY_SHARE>
KVPLAN_INLINE u32 weight_of(u32 distance) {
    return BY_SHARE ? u32(fast_exp2(WEIGHT_BITS - float_from_bits(distance)) + 0.5f) : 1u;
}

template <bool BY_SHARE>
KVPLAN_INLINE void add_unit(Tally& tally, const Unit& unit, float most, float scale, const Interval& interval, int shift) {
    u32 sums[BUCKETS] = {};
    KVPLAN_UNROLL
    for (int i = 0; i < UNIT; ++i) {
        const u32 distance = bits_from_float(distance_of(unit.values[i], most, scale));
        if (distance < interval.first || distance > interval.last) continue;
        const u32 weight = weight_of<BY_SHARE>(distance);
        const int bucket = int((distance - interval.first) >> shift);
        tally.smallest = smaller(tally.smallest, distance);
        tally.largest = larger(tally.largest, distance);
        KVPLAN_UNROLL
        for (int j = 0; j < BUCKETS; ++j) sums[j] += bucket <= j ? weight : 0u;
    }
    KVPLAN_UNROLL
    for (int j = 0; j < BUCKETS; ++j) tally.sums[j] += sums[j];
}

KVPLAN_INLINE u64 from_lane(u64 value, int mask) {
    const u32 low = __shfl_xor_sync(FULL_WARP, u32(value), mask);
    return u64(__shfl_xor_sync(FULL_WARP, u32(value >> 32), mask)) << 32 | low;
}

// The warp's sum of bucket lane % BUCKETS: lanes exchange the halves that the other one goes on with.
KVPLAN_INLINE u64 sum_of_bucket(Tally tally) {
    const int lane = int(threadIdx.x) % WARP_LANES;
    KVPLAN_UNROLL
    for (int half = BUCKETS / 2; half > 0; half /= 2) {
        const bool takes_upper = lane & half;
        KVPLAN_UNROLL
        for (int j = 0; j < half; ++j) {
            const u64 kept = takes_upper ? tally.sums[j + half] : tally.sums[j];
            tally.sums[j] = kept + from_lane(takes_upper ? tally.sums[j] : tally.sums[j + half], half);
        }
    }
    u64 sum = tally.sums[0];
    for (int mask = BUCKETS; mask < WARP_LANES; mask *= 2) sum += from_lane(sum, mask);
    return sum;
}

// The tallies of all THREADS threads together, until the next call.
template <int THREADS>
KVPLAN_INLINE const Tally& over_block(const Tally& tally) {
    constexpr int WARPS_OF_BLOCK = THREADS / WARP_LANES;
    __shared__ u64 sums[WARPS_OF_BLOCK][BUCKETS];
    __shared__ u32 ends[WARPS_OF_BLOCK][2];
    __shared__ Tally total;
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    u32 smallest = tally.smallest, largest = tally.largest;
    for (int mask = 1; mask < WARP_LANES; mask *= 2) {
        smallest = smaller(smallest, __shfl_xor_sync(FULL_WARP, smallest, mask));
        largest = larger(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
    }
    const u64 sum = sum_of_bucket(tally);
    if (lane < BUCKETS) sums[warp][lane] = sum;
    if (lane == 0) ends[warp][0] = smallest, ends[warp][1] = largest;
    __syncthreads();  // the last use of total is over too
    if (threadIdx.x < BUCKETS) {
        u64 all = 0;
        for (int w = 0; w < WARPS_OF_BLOCK; ++w) all += sums[w][threadIdx.x];
        total.sums[threadIdx.x] = all;
    } else if (threadIdx.x == BUCKETS) {
        for (int w = 0; w < WARPS_OF_BLOCK; ++w) {
            smallest = smaller(smallest, ends[w][0]);
            largest = larger(largest, ends[w][1]);
        }
        total.smallest = smallest, total.largest = largest;
    }
    __syncthreads();
    return total;
}

template <bool BY_SHARE, int THREADS>
KVPLAN_INLINE const Tally& tally_row(const Row& row, float most, const Interval& interval, int shift) {
    Tally tally = {{}, 0xFFFFFFFFu, 0};
    const float scale = row.asked->scale;
    for (int start = int(threadIdx.x) * UNIT; start < row.width; start += THREADS * UNIT) {
        add_unit<BY_SHARE>(tally, load_unit(row, start), most, scale, interval, shift);
    }
    return over_block<THREADS>(tally);
}

// Of tokens within `limit` of the likeliest: the smallest distance within which `wanted` of them are, or that share of
// their probability; `limit` where they are fewer. Tokens as far as the last one are within it too.
template <bool BY_SHARE, int THREADS>
KVPLAN_INLINE float nearest(const Row& row, float most, float limit, double wanted) {
    const float farthest = BY_SHARE ? smaller(limit, WEIGHT_BITS + 2.0f) : limit;  // farther tokens have no weight
    Interval interval = {0, smaller(bits_from_float(farthest), LARGEST_FINITE)};
    u64 before = 0;  // the weights of the tokens that are nearer than the interval
    for (bool is_first = true;; is_first = false) {
        const int shift = bucket_shift(interval);
        const Tally& tally = tally_row<BY_SHARE, THREADS>(row, most, interval, shift);
        if (BY_SHARE && is_first) wanted *= double(tally.sums[BUCKETS - 1]);
        if (double(before + tally.sums[BUCKETS - 1]) < wanted) return limit;
        int bucket = 0;
        while (double(before + tally.sums[bucket]) < wanted) ++bucket;
        const u32 begin = interval.first + (u32(bucket) << shift);
        interval = {larger(begin, tally.smallest), smaller(begin + (1u << shift) - 1, tally.largest)};
        if (interval.first == interval.last) return float_from_bits(interval.last);
        if (bucket > 0) before += tally.sums[bucket - 1];
    }
}
