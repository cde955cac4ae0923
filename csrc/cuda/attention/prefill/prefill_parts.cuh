// How the parts of one tile of prefill rows become one, where plan.cu has cut the tokens that the tile sees.
//
// Each block leaves what its threads hold of its rows in the part's slot of the scratch memory. The block that is done last
// takes all of them in, in the order of the parts, so the result does not depend on which one that was, and writes the
// output. No block waits for another, and there is no second launch.
#pragma once

#include "prefill.cuh"

// x, of which the compiler does not know that it is the same: what is derived from it is computed anew where it is
// needed, and not kept in registers throughout the loop.
KVPLAN_INLINE int computed_anew(int x) {
#if !defined(KVPLAN_HOST)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// The item of this block once more: what only the end, or few tiles of KV, need is not kept in registers meanwhile.
KVPLAN_INLINE const PrefillItem& item_anew(const AttentionParams& params) {
    return static_cast<const PrefillItem*>(params.items)[computed_anew(int(blockIdx.x))];
}

// Two states of one row: what their sums are multiplied with before they are added.
struct Shares {
    float own;
    float other;
};

// largest: the row's largest logit, and that of both states afterwards; in base 2 after multiplication with factor.
KVPLAN_INLINE Shares shares_of(float& largest, float other_largest, float factor) {
    const float both = larger_score(largest, other_largest), reference = finite_or_zero(both);
    const Shares shares = {fast_exp2((largest - reference) * factor), fast_exp2((other_largest - reference) * factor)};
    largest = both;
    return shares;
}

KVPLAN_INLINE float merged(float own, float other, const Shares& shares) {
    return own * shares.own + other * shares.other;
}

// Where a part of this block's tile, for its KV head, is left.
KVPLAN_INLINE float* slot_of(const PrefillItem& item, int part, i64 part_floats, const AttentionParams& params) {
    return params.partial_sums + (i64(item.first_slot + part) * gridDim.y + blockIdx.y) * part_floats;
}

// Whether all parts of the tile are in their slots, which is so in one of its blocks. is_last: shared memory that nobody uses
// any more, after a barrier. sync: a barrier of the block's threads that are here, of which the first is one.
template <typename Sync>
KVPLAN_INLINE bool comes_last(const PrefillItem& item, int* is_last, const AttentionParams& params, const Sync& sync) {
    __threadfence();  // what this thread has left is visible before its block counts
    sync();
    if (threadIdx.x == 0) {
        int* finished = params.finished + i64(item.first_slot) * gridDim.y + blockIdx.y;
        *is_last = atomicAdd(finished, 1) == item.num_parts - 1;
        if (*is_last) atomicAdd(finished, -item.num_parts);  // ready for the next layer
        __threadfence();
    }
    sync();
    return *is_last;
}

KVPLAN_INLINE bool comes_last(const PrefillItem& item, int* is_last, const AttentionParams& params) {
    return comes_last(item, is_last, params, [] { __syncthreads(); });
}
