// What both prefill kernels share: which rows and which tokens one block works on.
//
// The rows of a sequence are its (new token, head of the group) pairs, token by token, so that all heads of a KV head
// read its keys once and a short chunk still fills a tile:
//
//     row        0        1        2        3        4     ...          GROUP = 3
//     token      0        0        0        1        1
//     head       0        1        2        0        1     (within the group)
#pragma once

#include "../attention.cuh"

#ifdef KVPLAN_SHARED
constexpr bool IS_SHARED = true;  // tiles are of a prefix that decoding sequences share: prefill_shared.cuh
#else
constexpr bool IS_SHARED = false;
#endif

struct PrefillTile {
    int sequence;
    int kv_head;
    int first_row;       // of the sequence's rows
    int num_rows;        // in this tile
    int first_token;     // of the sequence, in the query tensor; of a shared prefix not used
    int first_member;    // of a shared prefix alone: place of its first sequence
    int first_position;  // of the sequence's first new token
    int kv_begin;        // first position that this block attends to
    int kv_end;          // one past the last
};

KVPLAN_INLINE PrefillTile tile_of(const PrefillItem& item, int tile_rows, const AttentionParams& params) {
    PrefillTile tile;
    tile.sequence = IS_SHARED ? params.members[item.sequence] : item.sequence;
    tile.kv_head = int(blockIdx.y);
    tile.first_token = params.query_starts[tile.sequence];
    tile.first_member = item.sequence;
    const int num_queries =
        IS_SHARED ? item.first_position : params.query_starts[item.sequence + 1] - tile.first_token;
    tile.first_row = item.tile * tile_rows;
    tile.num_rows = smaller(tile_rows, num_queries * GROUP - tile.first_row);
    tile.first_position = IS_SHARED ? 0 : params.seq_lens[item.sequence] - num_queries;  // of a shared prefix not used
    tile.kv_begin = item.first_token;
    tile.kv_end = item.last_token;
    return tile;
}

// The position of one of the tile's rows; rows past the last take the last one's.
KVPLAN_INLINE int row_position(const PrefillTile& tile, int row) {
    return tile.first_position + (tile.first_row + smaller(row, tile.num_rows - 1)) / GROUP;
}

KVPLAN_INLINE int row_head(const PrefillTile& tile, int row) {
    return tile.kv_head * GROUP + (tile.first_row + row) % GROUP;
}

// Elements from the start of a [tokens, heads, SIZE] tensor to one of the tile's rows.
template <int SIZE = HEAD_SIZE>
KVPLAN_INLINE i64 row_start(const PrefillTile& tile, int row, i64 token_stride) {
    return (tile.first_token + (tile.first_row + row) / GROUP) * token_stride + row_head(tile, row) * SIZE;
}

// Whether every row of a tile, whose first one lies at first_position, sees every position of [begin, begin + count). May
// say no where all do: the last row's position is taken as that of a full tile of tile_rows rows. Of a shared prefix they do.
KVPLAN_INLINE bool all_visible(int first_position, int begin, int count, int tile_rows, const AttentionParams& params) {
    const int last_position = first_position + (tile_rows + GROUP - 2) / GROUP;
    return IS_SHARED || (begin + count - 1 <= first_position && begin >= first_visible(last_position, params));
}

// What a score is multiplied with for base 2; softcap has scaled it already.
KVPLAN_INLINE float score_factor(const AttentionParams& params) {
    return (HAS_SOFTCAP ? 1.0f : params.scale * params.key_scale) * LOG2_E;
}
