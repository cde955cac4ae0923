// Finds decoding sequences whose block tables begin alike (samples of one request, a prompt that many begin with), and cuts
// attention over what they share into work items: on the device, so that a captured graph follows the tables of each replay.
//
// A group is a run of neighbours in which each shares at least min_shared tokens with the one before, in whole blocks before
// the newest token of either; its prefix is the shortest of these, rounded down to chunk_multiple. It is planned as a
// prompt would be whose new tokens are those of the members, but all of them see all of the prefix. One block does it all;
// plan.cu, which reads `shared`, comes next.
#define KVPLAN_OF_GROUPS 1
#include "plan_prefill.cuh"

// Blocks of the sequence and the one before that may be the same; 0 where the first ones differ or one of both does not decode.
KVPLAN_INLINE int blocks_to_compare(int sequence, const PlanParams& params) {
    if (sequence == 0) return 0;
    const int* starts = params.query_starts + sequence;
    if (starts[0] - starts[-1] != 1 || starts[1] - starts[0] != 1) return 0;
    const int length = smaller(params.seq_lens[sequence - 1], params.seq_lens[sequence]);
    const int blocks = larger(0, length - 1) / params.block_size;
    if (blocks * params.block_size < params.min_shared) return 0;
    const int* table = params.block_tables + i64(sequence) * params.table_stride;
    return table[0] == table[-i64(params.table_stride)] ? blocks : 0;
}

// How many of so many blocks are the same as those of the sequence before; a warp.
KVPLAN_INLINE int common_blocks(int sequence, int blocks, const PlanParams& params) {
    const int* own = params.block_tables + i64(sequence) * params.table_stride;
    const int* before = own - params.table_stride;
    int block = int(threadIdx.x) % WARP_LANES;
    while (block < blocks && own[block] == before[block]) block += WARP_LANES;
    for (int mask = 1; mask < WARP_LANES; mask *= 2) block = smaller(block, __shfl_xor_sync(FULL_WARP, block, mask));
    return smaller(block, blocks);
}

// Writes the group whose first member this is, or that it has none.
KVPLAN_INLINE void write_group(int first, const int* with_previous, const PlanParams& params) {
    int members = 1, tokens = params.seq_lens[first];
    while (first + members < params.num_sequences && with_previous[first + members] >= params.min_shared)
        tokens = smaller(tokens, with_previous[first + members++]);
    for (int i = 0; i < members; ++i) {
        params.shared[first + i] = members > 1 ? tokens : 0;
        params.shared[params.num_sequences + first + i] = i == 0 && members > 1 ? members : 0;
    }
}

KVPLAN_INLINE void find_groups(const PlanParams& params) {
    const int thread = int(threadIdx.x), num_sequences = params.num_sequences;
    int* with_previous = params.shared + 2 * i64(num_sequences);
    for (int s = thread; s < num_sequences; s += THREADS) with_previous[s] = blocks_to_compare(s, params);
    __syncthreads();
    for (int s = thread / WARP_LANES; s < num_sequences; s += THREADS / WARP_LANES) {
        const int blocks = with_previous[s];
        if (blocks == 0) continue;
        const int common = common_blocks(s, blocks, params);
        if (thread % WARP_LANES == 0) with_previous[s] = round_down(common * params.block_size, params);
    }
    __syncthreads();
    for (int s = thread; s < num_sequences; s += THREADS)
        if (with_previous[s] < params.min_shared) write_group(s, with_previous, params);
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
