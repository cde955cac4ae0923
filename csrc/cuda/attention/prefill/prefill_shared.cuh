// Attention of several decoding sequences over the prefix that all of them share: their queries are the rows of one tile, as those
// of a prompt are, so that the prefix is read once for as many of them as a tile has rows.
//
// A tile's rows are those of a prompt whose new tokens are the members' only ones, which lie anywhere in the step: `members`
// says where. Every row sees every token, and parts end at multiples of 64 tokens: nothing is masked. What is left of a row
// is the first partial result of its sequence's items of decode, whose kernel comes next, finds it there and merges it with
// its own.
#pragma once

#include "prefill_parts.cuh"

// The sequence of one of the tile's rows.
KVPLAN_INLINE int member_of(const PrefillTile& tile, int row, const AttentionParams& params) {
    return params.members[tile.first_member + (tile.first_row + row) / GROUP];
}

// Elements from the start of the queries to one of the tile's rows.
KVPLAN_INLINE i64 query_start(const PrefillTile& tile, int row, const AttentionParams& params) {
    if constexpr (!IS_SHARED) return row_start(tile, row, params.query_stride);
    const int token = params.query_starts[member_of(tile, row, params)];
    return token * params.query_stride + row_head(tile, row) * HEAD_SIZE;
}

// Leaves TILES times 16 rows to decode, which takes logits in base 2. Fragments as in RowsState.
template <int TILES, typename State>
KVPLAN_INLINE void leave_to_decode(const State& state, const PrefillTile& tile, int first_row, int lane, float factor,
                                   const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int r = 0; r < TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + r * 16 + half * 8 + lane / 4;
            float total = state.total[r][half];
            total += __shfl_xor_sync(FULL_WARP, total, 1);
            total += __shfl_xor_sync(FULL_WARP, total, 2);
            if (row >= tile.num_rows) continue;
            const int item = params.first_items[member_of(tile, row, params)];
            const i64 target = i64(item) * params.num_query_heads + row_head(tile, row);
            if (lane % 4 == 0) {
                params.partial_stats[target * 2] = state.largest[r][half] * factor;
                params.partial_stats[target * 2 + 1] = total;
            }
            float* sums = static_cast<float*>(params.out) + target * HEAD_SIZE + lane % 4 * 2;
            KVPLAN_UNROLL
            for (int n = 0; n < HEAD_SIZE / 8; ++n) {
                sums[n * 8] = state.sums[r][n][half * 2];
                sums[n * 8 + 1] = state.sums[r][n][half * 2 + 1];
            }
        }
    }
}
