// The end of every decode kernel: warps of a block are merged, then the blocks that share a sequence.
//
// Each warp has attended over its own tokens and holds, per head, the largest logit m (base 2), the sum l of 2^(x - m)
// and the weighted sum of V. Two such states merge by scaling each with 2^(m - max). A sequence with one item is done
// then; otherwise the state goes to the partial buffers, and the block that finishes last merges the items in order, so
// the result does not depend on which one that was.
#pragma once

#include "attention.cuh"

constexpr int WARPS = KVPLAN_WARPS;
constexpr int THREADS = WARPS * WARP_LANES;

// Shared memory of the merge, over the main loop's buffers.
template <int HEADS>
struct MergeBuffers {
    float sums[WARPS][HEADS][HEAD_SIZE];
    float largest[WARPS][HEADS];
    float total[WARPS][HEADS];
    int is_last;
};

template <int HEADS>
KVPLAN_INLINE void write_output(const AttentionParams& params, int token, int head, int element, float sum,
                                float largest, float total) {
    if constexpr (HAS_SINKS) {
        total += fast_exp2(params.sinks[head] * LOG2_E - finite_or_zero(largest));
    }
    const float value = total > 0.0f ? sum / total * params.value_scale : 0.0f;
    static_cast<Scalar*>(params.out)[token * params.out_stride + head * HEAD_SIZE + element] = from_float<Scalar>(value);
}

// Reads what another block wrote: past the first-level cache, which no one keeps coherent.
KVPLAN_INLINE float load_from_l2(const float* address) {
#if defined(KVPLAN_HOST)
    return *address;
#else
    return __ldcg(address);
#endif
}

// Merges all items of a sequence for heads [first_head, first_head + num_heads). `weights` has room for one float per
// (head, item) and two per head.
KVPLAN_INLINE void merge_items(const AttentionParams& params, const DecodeItem& item, int token, int first_head,
                               int num_heads, float* weights) {
    float* totals = weights + num_heads * item.num_items;
    for (int local = int(threadIdx.x); local < num_heads; local += THREADS) {
        const float* stats = params.partial_stats + (i64(item.first_item) * params.num_query_heads + first_head + local) * 2;
        float largest = minus_infinity(), total = 0.0f;
        for (int i = 0; i < item.num_items; ++i)
            largest = maximum(largest, load_from_l2(stats + i64(i) * params.num_query_heads * 2));
        for (int i = 0; i < item.num_items; ++i) {
            const float* one = stats + i64(i) * params.num_query_heads * 2;
            const float weight = fast_exp2(load_from_l2(one) - finite_or_zero(largest));
            weights[local * item.num_items + i] = weight;
            total += weight * load_from_l2(one + 1);
        }
        totals[local] = largest;
        totals[num_heads + local] = total;
    }
    __syncthreads();
    for (int i = int(threadIdx.x); i < num_heads * HEAD_SIZE; i += THREADS) {
        const int local = i / HEAD_SIZE, element = i % HEAD_SIZE;
        const float* sums = params.partial_sums +
                            (i64(item.first_item) * params.num_query_heads + first_head + local) * HEAD_SIZE + element;
        float sum = 0.0f;
        KVPLAN_UNROLL_BY_8
        for (int j = 0; j < item.num_items; ++j)
            sum += weights[local * item.num_items + j] * load_from_l2(sums + i64(j) * params.num_query_heads * HEAD_SIZE);
        write_output<1>(params, token, first_head + local, element, sum, totals[local], totals[num_heads + local]);
    }
}

// Merges the warps of this block; `buffers` were filled by all warps and a barrier has passed.
template <int HEADS>
KVPLAN_INLINE void finish_item(const AttentionParams& params, const DecodeItem& item, int item_number, int token,
                               int first_head, int num_heads, MergeBuffers<HEADS>& buffers) {
    const bool only_item = item.num_items == 1;
    for (int i = int(threadIdx.x); i < num_heads * HEAD_SIZE; i += THREADS) {
        const int local = i / HEAD_SIZE, element = i % HEAD_SIZE, head = first_head + local;
        float largest = minus_infinity(), total = 0.0f, sum = 0.0f;
        KVPLAN_UNROLL
        for (int w = 0; w < WARPS; ++w) largest = maximum(largest, buffers.largest[w][local]);
        KVPLAN_UNROLL
        for (int w = 0; w < WARPS; ++w) {
            const float weight = fast_exp2(buffers.largest[w][local] - finite_or_zero(largest));
            total += weight * buffers.total[w][local];
            sum += weight * buffers.sums[w][local][element];
        }
        if (only_item) {
            write_output<HEADS>(params, token, head, element, sum, largest, total);
            continue;
        }
        const i64 row = i64(item_number) * params.num_query_heads + head;
        params.partial_sums[row * HEAD_SIZE + element] = sum;
        if (element == 0) {
            params.partial_stats[row * 2] = largest;
            params.partial_stats[row * 2 + 1] = total;
        }
    }
    if (only_item) return;
    __threadfence();  // this thread's partials are visible before the block counts as finished
    __syncthreads();
    if (threadIdx.x == 0) {
        int* finished = params.finished + i64(item.sequence) * gridDim.y + blockIdx.y;
        buffers.is_last = atomicAdd(finished, 1) == item.num_items - 1;
        if (buffers.is_last) *finished = 0;  // ready for the next layer
        __threadfence();
    }
    __syncthreads();
    const bool is_last = buffers.is_last;
    __syncthreads();  // everybody has read is_last before the weights overwrite it
    if (is_last) merge_items(params, item, token, first_head, num_heads, &buffers.sums[0][0][0]);
}
