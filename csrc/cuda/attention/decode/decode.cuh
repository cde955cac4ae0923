// The end of every decode kernel: warps of a block are merged, then the blocks that share a sequence.
//
// Each warp has attended over its own tokens and holds, per head, the largest logit m (base 2), the sum l of 2^(x - m)
// and the weighted sum of V. Two such states merge by scaling each with 2^(m - max). A sequence with one item is done
// then; otherwise the state goes to the partial buffers, and the block that finishes last merges the items in order, so
// the result does not depend on which one that was.
#pragma once

#include "../attention.cuh"

// Shared memory of the merge, over the main loop's buffers.
template <int HEADS>
struct MergeBuffers {
    float sums[WARPS][HEADS][VALUE_SIZE];
    float largest[WARPS][HEADS];
    float total[WARPS][HEADS];
    int is_last;
};

KVPLAN_INLINE void write_output(const AttentionParams& params, int token, int head, int element, float sum,
                                float largest, float total) {
    if constexpr (HAS_SINKS) {
        total += fast_exp2(params.sinks[head] * LOG2_E - finite_or_zero(largest));
    }
    // 0 where no token was seen; a NaN stays one, so that a model that overflows is seen to
    const float value = total == 0.0f ? 0.0f : sum / total * params.value_scale;
    static_cast<Scalar*>(params.out)[token * params.out_stride + head * VALUE_SIZE + element] =
        from_float<Scalar>(value);
}

// The weight of each item of a sequence for one head, and what they come to; one warp, a lane per item.
KVPLAN_INLINE void weigh_items(const AttentionParams& params, const DecodeItem& item, int head, int lane,
                               float* weights, float& largest, float& total) {
    const float* stats = params.partial_stats + (i64(item.first_item) * params.num_query_heads + head) * 2;
    const i64 stride = i64(params.num_query_heads) * 2;
    largest = minus_infinity();
    total = 0.0f;
    for (int i = lane; i < item.num_items; i += WARP_LANES)
        largest = maximum(largest, load_from_l2(stats + i * stride));
    for (int mask = 1; mask < WARP_LANES; mask *= 2)
        largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
    for (int i = lane; i < item.num_items; i += WARP_LANES) {
        weights[i] = fast_exp2(load_from_l2(stats + i * stride) - finite_or_zero(largest));
        total += weights[i] * load_from_l2(stats + i * stride + 1);
    }
    for (int mask = 1; mask < WARP_LANES; mask *= 2) total += __shfl_xor_sync(FULL_WARP, total, mask);
}

// Merges all items of a sequence for heads [first_head, first_head + num_heads). `weights` has room for one float per
// (head, item) and two per head.
KVPLAN_INLINE void merge_items(const AttentionParams& params, const DecodeItem& item, int token, int first_head,
                               int num_heads, float* weights) {
    constexpr int VECTOR = 4;
    float* totals = weights + num_heads * item.num_items;
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    for (int local = warp; local < num_heads; local += WARPS) {
        float largest, total;
        weigh_items(params, item, first_head + local, lane, weights + local * item.num_items, largest, total);
        if (lane == 0) totals[local] = largest;
        if (lane == 0) totals[num_heads + local] = total;
    }
    __syncthreads();
    const i64 item_stride = i64(params.num_query_heads) * VALUE_SIZE;
    for (int i = int(threadIdx.x); i < num_heads * VALUE_SIZE / VECTOR; i += THREADS) {
        const int local = i * VECTOR / VALUE_SIZE, element = i * VECTOR % VALUE_SIZE, head = first_head + local;
        const float* sums = params.partial_sums + item.first_item * item_stride + head * VALUE_SIZE + element;
        float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
        KVPLAN_UNROLL_BY(8)
        for (int j = 0; j < item.num_items; ++j) {
            const float weight = weights[local * item.num_items + j];
            const float4 part = load_from_l2(reinterpret_cast<const float4*>(sums + j * item_stride));
            sum.x += weight * part.x, sum.y += weight * part.y;
            sum.z += weight * part.z, sum.w += weight * part.w;
        }
        const float largest = totals[local], total = totals[num_heads + local];
        write_output(params, token, head, element, sum.x, largest, total);
        write_output(params, token, head, element + 1, sum.y, largest, total);
        write_output(params, token, head, element + 2, sum.z, largest, total);
        write_output(params, token, head, element + 3, sum.w, largest, total);
    }
}

// Merges the warps of this block; `buffers` were filled by all warps and a barrier has passed.
template <int HEADS>
KVPLAN_INLINE void finish_item(const AttentionParams& params, const DecodeItem& item, int item_number, int token,
                               int first_head, int num_heads, MergeBuffers<HEADS>& buffers) {
    const bool only_item = item.num_items == 1;
    for (int i = int(threadIdx.x); i < num_heads * VALUE_SIZE; i += THREADS) {
        const int local = i / VALUE_SIZE, element = i % VALUE_SIZE, head = first_head + local;
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
            write_output(params, token, head, element, sum, largest, total);
            continue;
        }
        const i64 row = i64(item_number) * params.num_query_heads + head;
        params.partial_sums[row * VALUE_SIZE + element] = sum;
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
        buffers.is_last = atomicAdd(finished, 1) == item.num_items - item.num_shared - 1;
        if (buffers.is_last) *finished = 0;  // ready for the next layer
        __threadfence();
    }
    __syncthreads();
    const bool is_last = buffers.is_last;
    __syncthreads();  // everybody has read is_last before the weights overwrite it
    if (is_last) merge_items(params, item, token, first_head, num_heads, &buffers.sums[0][0][0]);
}
