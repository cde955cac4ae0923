// Cuts one step's attention into work items, on the device: a captured graph then follows the lengths of each replay.
//
// Sequences with one new token are decode work: their visible tokens are cut into chunks, as long as they may be while
// there are still enough chunks for every block that the device runs at once. Sequences with more new tokens are
// prefill work: tiles of ROWS (token, head of the group) rows, the tiles that see most tokens first. One block does it
// all.
#include "../platform.cuh"

constexpr int THREADS = 256;

struct PlanParams {
    // [num_sequences]  tokens in the cache, this step's included
    const int* seq_lens;
    // [num_sequences + 1]  first query token of each sequence
    const int* query_starts;
    // [max_decode_items, 8]  int32: sequence, first token, last token, first item, number of items, token of the
    //   query, length, unused
    int* decode_items;
    // [max_prefill_items, 2]  int32: sequence, tile
    int* prefill_items;
    int num_sequences;
    int max_decode_items;
    int max_prefill_items;
    int window;          // 0: none
    int target_chunks;   // chunks that fill the device once
    int min_chunk;       // tokens; a multiple of chunk_multiple
    int chunk_multiple;  // tokens
    int group;           // query heads per KV head
    int tile_rows;
};

// What one sequence asks for.
struct Range {
    int first_token;  // rounded down to the chunk multiple
    int num_tokens;
    bool is_decode;
    int num_tiles;
    int query_token;
    int length;
};

KVPLAN_INLINE Range range_of(int sequence, const PlanParams& params) {
    const int length = params.seq_lens[sequence];
    const int query_token = params.query_starts[sequence];
    const int queries = params.query_starts[sequence + 1] - query_token;
    const int visible = params.window > 0 ? larger(0, length - params.window) : 0;
    const int first = visible / params.chunk_multiple * params.chunk_multiple;
    const bool is_decode = queries == 1;
    return {first, is_decode ? larger(0, length - first) : 0, is_decode,
            is_decode ? 0 : ceil_divide(queries * params.group, params.tile_rows), query_token, length};
}

// The sum over all threads before this one; `total` gets the sum over all.
KVPLAN_INLINE int scan_block(int value, int* scan, int& total) {
    const int thread = int(threadIdx.x);
    scan[thread] = value;
    __syncthreads();
    for (int step = 1; step < THREADS; step *= 2) {
        const int before = thread >= step ? scan[thread - step] : 0;
        __syncthreads();
        scan[thread] += before;
        __syncthreads();
    }
    total = scan[THREADS - 1];
    const int result = scan[thread] - value;
    __syncthreads();
    return result;
}

KVPLAN_INLINE int choose_chunk(const PlanParams& params, int* scan) {
    int tokens = 0, total;
    for (int s = int(threadIdx.x); s < params.num_sequences; s += THREADS) tokens += range_of(s, params).num_tokens;
    scan_block(tokens, scan, total);
    const int even = ceil_divide(total, params.target_chunks);
    return larger(params.min_chunk, ceil_divide(even, params.chunk_multiple) * params.chunk_multiple);
}

KVPLAN_INLINE void write_decode_items(const PlanParams& params, int sequence, const Range& range, int first_item,
                                      int num_items) {
    if (num_items == 0) return;
    const int share =
        ceil_divide(ceil_divide(range.num_tokens, num_items), params.chunk_multiple) * params.chunk_multiple;
    const int end = range.first_token + range.num_tokens;
    for (int i = 0; i < num_items && first_item + i < params.max_decode_items; ++i) {
        int* item = params.decode_items + i64(first_item + i) * 8;
        item[0] = sequence;
        item[1] = smaller(end, range.first_token + i * share);
        item[2] = smaller(end, range.first_token + (i + 1) * share);
        item[3] = first_item;
        item[4] = num_items;
        item[5] = range.query_token;
        item[6] = range.length;
    }
}

KVPLAN_INLINE void write_prefill_items(const PlanParams& params, int sequence, int num_tiles, int first_item) {
    for (int i = 0; i < num_tiles && first_item + i < params.max_prefill_items; ++i) {
        params.prefill_items[2 * (first_item + i)] = sequence;
        params.prefill_items[2 * (first_item + i) + 1] = num_tiles - 1 - i;
    }
}

// grid (1), block THREADS.
KVPLAN_KERNEL(plan_attention, PlanParams, THREADS) {
    __shared__ int scan[THREADS];
    const int chunk = choose_chunk(params, scan);
    int decode_base = 0, prefill_base = 0;
    for (int start = 0; start < params.num_sequences; start += THREADS) {
        const int sequence = start + int(threadIdx.x);
        Range range = {};
        if (sequence < params.num_sequences) range = range_of(sequence, params);
        const int num_items = range.is_decode ? larger(1, ceil_divide(range.num_tokens, chunk)) : 0;
        int decode_total, prefill_total;
        const int decode_first = decode_base + scan_block(num_items, scan, decode_total);
        const int prefill_first = prefill_base + scan_block(range.num_tiles, scan, prefill_total);
        write_decode_items(params, sequence, range, decode_first, num_items);
        write_prefill_items(params, sequence, range.num_tiles, prefill_first);
        decode_base += decode_total;
        prefill_base += prefill_total;
    }
    for (int i = decode_base + int(threadIdx.x); i < params.max_decode_items; i += THREADS)
        params.decode_items[i64(i) * 8] = -1;
    for (int i = prefill_base + int(threadIdx.x); i < params.max_prefill_items; i += THREADS)
        params.prefill_items[2 * i] = -1;
}
