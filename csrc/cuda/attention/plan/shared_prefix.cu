// Finds decoding sequences whose block tables begin alike (samples of one request, a prompt that many begin with), and cuts
// attention over what they share into work items: on the device, so that a captured graph follows the tables of each replay.
//
// Sequences may share that have the block in common which completes the first min_shared tokens of whole blocks before the
// newest token. Those with the same one are put side by side, in their order; all that follows counts places in this order,
// wherever in the step the sequences stand:
//
//     sequence   0 1 2 3 4 5     block   7 4 7 - 4 7     place   0 1 | 2 3 4 | 5     sequence   1 4 | 0 2 5 | 3
//
// A group is a run of neighbours in which each shares at least min_shared tokens with the one before; its prefix is the
// shortest of these, rounded down to chunk_multiple. It is planned as a prompt would be whose new tokens are those of the
// members, but all of them see all of the prefix. One block does it all; plan.cu, which reads `shared`, comes next.
#define KVPLAN_OF_GROUPS 1
#include "plan_prefill.cuh"

constexpr int SHARES_NOTHING = 0x7FFFFFFE;  // more than any block

KVPLAN_INLINE int* row_of(const PlanParams& params, int row) { return params.shared + i64(row) * params.num_sequences; }

// Whole blocks before the newest token.
KVPLAN_INLINE int whole_blocks(int sequence, const PlanParams& params) {
    return larger(0, params.seq_lens[sequence] - 1) / params.block_size;
}

KVPLAN_INLINE const int* table_of(int sequence, const PlanParams& params) {
    return params.block_tables + i64(sequence) * params.table_stride;
}

// The block that whoever may share with the sequence has too.
KVPLAN_INLINE int key_of(int sequence, const PlanParams& params) {
    const int* starts = params.query_starts + sequence;
    const int needed = ceil_divide(params.min_shared, params.block_size);
    if (starts[1] - starts[0] != 1 || whole_blocks(sequence, params) < needed) return SHARES_NOTHING;
    return table_of(sequence, params)[needed - 1];
}

// Writes params.members: sequences in the order of their keys. A few hundred are counted faster than they are sorted.
KVPLAN_INLINE void order_by_key(int* keys, const PlanParams& params) {
    const int num_sequences = params.num_sequences;
    for (int s = int(threadIdx.x); s < num_sequences; s += THREADS) keys[s] = key_of(s, params);
    __syncthreads();
    for (int s = int(threadIdx.x); s < num_sequences; s += THREADS) {
        const int own = keys[s];
        int place = 0;
        for (int other = 0; other < num_sequences; ++other) place += keys[other] < own + int(other < s);
        params.members[place] = s;
    }
    __syncthreads();
}

// Blocks that the sequences of a place and of the one before may have in common; 0 where they do not share.
KVPLAN_INLINE int blocks_to_compare(int place, const int* keys, const PlanParams& params) {
    if (place == 0) return 0;
    const int own = params.members[place], before = params.members[place - 1];
    if (keys[own] == SHARES_NOTHING || keys[own] != keys[before]) return 0;
    return smaller(whole_blocks(own, params), whole_blocks(before, params));
}

// How many of so many blocks are the same as those of the sequence before; a warp.
KVPLAN_INLINE int common_blocks(int place, int blocks, const PlanParams& params) {
    const int* own = table_of(params.members[place], params);
    const int* before = table_of(params.members[place - 1], params);
    int block = int(threadIdx.x) % WARP_LANES;
    while (block < blocks && own[block] == before[block]) block += WARP_LANES;
    for (int mask = 1; mask < WARP_LANES; mask *= 2) block = smaller(block, __shfl_xor_sync(FULL_WARP, block, mask));
    return smaller(block, blocks);
}

// Writes the group whose first member has this place, or that it has none.
KVPLAN_INLINE void write_group(int first, const int* with_previous, const PlanParams& params) {
    int count = 1, tokens = params.seq_lens[params.members[first]];
    while (first + count < params.num_sequences && with_previous[first + count] >= params.min_shared)
        tokens = smaller(tokens, with_previous[first + count++]);
    for (int i = 0; i < count; ++i) {
        row_of(params, 0)[params.members[first + i]] = count > 1 ? tokens : 0;
        row_of(params, 1)[first + i] = i == 0 && count > 1 ? count : 0;
    }
}

KVPLAN_INLINE void find_groups(const PlanParams& params) {
    const int thread = int(threadIdx.x), num_sequences = params.num_sequences;
    int *keys = row_of(params, 0), *with_previous = row_of(params, 2);
    order_by_key(keys, params);
    for (int p = thread; p < num_sequences; p += THREADS) with_previous[p] = blocks_to_compare(p, keys, params);
    __syncthreads();
    for (int p = thread / WARP_LANES; p < num_sequences; p += THREADS / WARP_LANES) {
        const int blocks = with_previous[p];
        if (blocks == 0) continue;
        const int common = common_blocks(p, blocks, params);
        if (thread % WARP_LANES == 0) with_previous[p] = round_down(common * params.block_size, params);
    }
    __syncthreads();
    for (int p = thread; p < num_sequences; p += THREADS)
        if (with_previous[p] < params.min_shared) write_group(p, with_previous, params);
    __syncthreads();
}

// grid (1), block THREADS.
KVPLAN_LONE_KERNEL(plan_shared_prefixes, PlanParams, THREADS) {
    __shared__ int scan[THREADS];
    __shared__ Neighbours groups;
    find_groups(params);
    const int part = params.num_slots > 1 ? choose_part(params, scan, groups) : 0;
    PrefillPlace place = {};
    for (int start = 0; start < params.num_sequences; start += THREADS) {
        const Range range = range_of(start + int(threadIdx.x), params);
        write_prefill_items(place, start, range, part, params, scan, groups);
    }
    for (int i = place.item + int(threadIdx.x); i < params.max_prefill_items; i += THREADS)
        params.prefill_items[i64(i) * 8] = -1;
}
