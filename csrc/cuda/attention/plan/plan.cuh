// What both halves of the plan know: the arguments, what one sequence asks for, and sums over all threads.
#pragma once

#include "../../platform.cuh"

constexpr int THREADS = 256;

struct PlanParams {
    // [num_sequences]  tokens in the cache, this step's included
    const int* seq_lens;
    // [num_sequences + 1]  first query token of each sequence
    const int* query_starts;
    // [max_decode_items, 8]  int32: sequence, first token, last token, first item, number of items, token of the
    //   query, length, unused
    int* decode_items;
    // [max_prefill_items, 8]  int32: sequence, tile, first token, last token, part, number of parts, first slot,
    //   position of the first row
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
    int target_tiles;  // prefill items that fill the device once
    int num_slots;     // parts of tiles that there is memory for; 0: all tiles stay whole
    int min_part;      // tokens; a multiple of chunk_multiple
};

// What one sequence asks for.
struct Range {
    int first_token;  // rounded down to the chunk multiple
    int num_tokens;
    bool is_decode;
    int num_tiles;
    int query_token;
    int num_queries;
    int length;
};

KVPLAN_INLINE int round_up(int tokens, const PlanParams& params) {
    return ceil_divide(tokens, params.chunk_multiple) * params.chunk_multiple;
}

KVPLAN_INLINE int round_down(int tokens, const PlanParams& params) {
    return tokens / params.chunk_multiple * params.chunk_multiple;
}

// One past the last sequence asks for nothing.
KVPLAN_INLINE Range range_of(int sequence, const PlanParams& params) {
    if (sequence >= params.num_sequences) return {};
    const int length = params.seq_lens[sequence];
    const int query_token = params.query_starts[sequence];
    const int queries = params.query_starts[sequence + 1] - query_token;
    const int first = round_down(params.window > 0 ? larger(0, length - params.window) : 0, params);
    const bool is_decode = queries == 1;
    const int num_tiles = is_decode ? 0 : ceil_divide(queries * params.group, params.tile_rows);
    return {first, is_decode ? larger(0, length - first) : 0, is_decode, num_tiles, query_token, queries, length};
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

// The smallest over all threads.
KVPLAN_INLINE u32 smallest_of_block(u32 value, int* scan) {
    const int thread = int(threadIdx.x);
    scan[thread] = int(value);
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread < half) scan[thread] = int(smaller(u32(scan[thread]), u32(scan[thread + half])));
        __syncthreads();
    }
    const u32 result = u32(scan[0]);
    __syncthreads();
    return result;
}
