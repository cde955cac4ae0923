// What both halves of the plan know: the arguments, what one sequence asks for, and sums over all threads.
#pragma once

#include "../../scan.cuh"

constexpr int THREADS = 256;
#ifdef KVPLAN_OF_GROUPS
constexpr bool OF_GROUPS = true;  // prefill work is that of shared prefixes: a group of sequences takes the place of one
#else
constexpr bool OF_GROUPS = false;
#endif

struct PlanParams {
    // [num_sequences]  tokens in the cache, this step's included
    const int* seq_lens;
    // [num_sequences + 1]  first query token of each sequence
    const int* query_starts;
    // [max_decode_items, 8]  int32: sequence, first token, last token, first item, number of items, token of the
    //   query, length, number of shared items
    int* decode_items;
    // [max_prefill_items, 8]  int32: sequence, tile, first token, last token, part, number of parts, first slot,
    //   position of the first row
    int* prefill_items;
    // [num_sequences, table_stride]  block numbers; read only to find shared prefixes
    const int* block_tables;
    // [3, num_sequences]  int32, null where prefixes are not shared: tokens of the prefix that a sequence shares with its
    //   group, a multiple of chunk_multiple; by place in `members`, sequences of the group that begins there, else 0;
    //   scratch memory
    int* shared;
    // [num_sequences]  int32: sequences, those of a group side by side; null where prefixes are not shared
    int* members;
    // [num_sequences]  int32: each one's first item of decode; null where prefixes are not shared
    int* first_items;
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
    int table_stride;
    int block_size;
    int min_shared;    // tokens; a shorter prefix is not shared
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

// What the group asks for that begins at this place: its members' only queries, one after the other, see all of the prefix.
KVPLAN_INLINE Range group_of(int place, const PlanParams& params) {
    const int tokens = params.shared[params.members[place]], count = params.shared[params.num_sequences + place];
    return {0, 0, false, ceil_divide(count * params.group, params.tile_rows), 0, count, tokens};
}

KVPLAN_INLINE Range own_range(int sequence, const PlanParams& params) {
    const int length = params.seq_lens[sequence];
    const int query_token = params.query_starts[sequence];
    const int queries = params.query_starts[sequence + 1] - query_token;
    const int shared = params.shared ? params.shared[sequence] : 0;
    const int first = shared > 0 ? shared : round_down(params.window > 0 ? larger(0, length - params.window) : 0, params);
    const bool is_decode = queries == 1;
    const int num_tiles = is_decode ? 0 : ceil_divide(queries * params.group, params.tile_rows);
    const int num_tokens = is_decode ? larger(0, length - first) : 0;
    return {first, num_tokens, is_decode, num_tiles, query_token, queries, length};
}

// One past the last sequence asks for nothing. Of groups: of a place.
KVPLAN_INLINE Range range_of(int sequence, const PlanParams& params) {
    if (sequence >= params.num_sequences) return {};
    return OF_GROUPS ? group_of(sequence, params) : own_range(sequence, params);
}

// How many of a decoding sequence's items another kernel does.
KVPLAN_INLINE int num_shared_items(const Range& range, const PlanParams& params) {
    return params.shared && range.first_token > 0 ? 1 : 0;  // no window: it begins with what it shares or at 0
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
