// Paged decode attention on tensor cores (sm_80 and newer): one query token per sequence, all of its history.
//
// A block owns (work item, KV head, HEADS heads of its group); its warps take tiles of 16 tokens in turn and never
// wait for one another before the end. Each warp keeps STAGES - 1 tiles of K and V in flight with cp.async.
//
// Per tile, with tokens as the M side, so that up to 8 heads cost one mma column block and nothing is wasted on M:
//     S^T [16 tokens x 8 heads]  = K [16 x d]    Q^T [d x 8]       d / 16 mma
//     O^T [d x 8 heads]         += V^T [d x 16]  P^T [16 x 8]      d / 16 mma
// The order of a sum does not matter, so the k indices of both products are permuted to make every lane's share of a
// row 16 contiguous bytes: shared memory is read with vector loads and no ldmatrix, fp8 works the same way, and at the
// end a lane holds 8 neighbouring elements of a head.
//     K:  lane (g, t) reads rows key_row(g) and key_row(g) + 8, elements 32 s + 8 t .. + 7   (two k steps)
//     V:  lane (g, t) reads rows t, t + 4, t + 8, t + 12, elements 64 s + 8 g .. + 7         (four m tiles)
#include "decode.cuh"
#include "../product_type.cuh"

constexpr int STAGES = KVPLAN_STAGES;
constexpr int TILE = 16;  // tokens
constexpr int HEADS = smaller(GROUP, HEAD_SIZE > 128 ? 8 : 16);  // more would not fit the registers
constexpr int HEAD_CHUNKS = ceil_divide(GROUP, HEADS);
constexpr int COLUMN_TILES = ceil_divide(HEADS, 8);
constexpr int K_STEPS = HEAD_SIZE / 16;
constexpr int ROW_BYTES = HEAD_SIZE * int(sizeof(Cache));
constexpr int ROW_CHUNKS = ROW_BYTES / 16;
// Row pitches that keep a quarter warp's vector reads in different banks: odd for K, 2 mod 4 for V (in 16 bytes).
constexpr int KEY_PITCH = (ROW_CHUNKS | 1) * 16;
constexpr int VALUE_PITCH = ((ROW_CHUNKS + 1) / 4 * 4 + 2) * 16;
constexpr int STAGE_BYTES = TILE * (KEY_PITCH + VALUE_PITCH);

static_assert(STAGES >= 2 && VALUE_PITCH >= ROW_BYTES && sizeof(Scalar) == 2);

// What one warp knows of its place.
struct WarpState {
    float largest[COLUMN_TILES][2];  // of heads 8 n + 2 t and + 1, base 2
    float total[COLUMN_TILES][2];    // this lane's share
    float sums[COLUMN_TILES][K_STEPS][4];
};

// The row of a K tile that lane group g reads: rows of neighbouring groups are 4 apart and so in different banks.
KVPLAN_INLINE int key_row(int g) { return g / 2 + g % 2 * 4; }

// COUNT neighbouring elements of a shared row as COUNT / 2 packed pairs of Product.
template <int COUNT>
KVPLAN_INLINE void load_pairs(u32 (&pairs)[COUNT / 2], const u8* row, int element) {
    const u8* address = row + element * int(sizeof(Cache));
    if constexpr (sizeof(Cache) == 2) {
        if constexpr (COUNT == 8) {
            const uint4 raw = load_vector<uint4>(address);
            pairs[0] = raw.x, pairs[1] = raw.y, pairs[2] = raw.z, pairs[3] = raw.w;
        } else if constexpr (COUNT == 4) {
            const uint2 raw = load_vector<uint2>(address);
            pairs[0] = raw.x, pairs[1] = raw.y;
        } else {
            pairs[0] = load_vector<u32>(address);
        }
    } else {
        u32 raw[2] = {};
        if constexpr (COUNT == 8) {
            const uint2 eight = load_vector<uint2>(address);
            raw[0] = eight.x, raw[1] = eight.y;
        } else if constexpr (COUNT == 4) {
            raw[0] = load_vector<u32>(address);
        } else {
            raw[0] = load_vector<u16>(address);
        }
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT / 2; ++i) pairs[i] = Pair<Product>::from_float8(raw[i / 2], i % 2 * 2);
    }
}

KVPLAN_INLINE int tile_block(const int* table, int tile_first, int last_token, int lane) {
    const int token = tile_first + (BLOCK_SIZE % TILE == 0 ? 0 : lane % TILE);
    return token < last_token ? table[token / BLOCK_SIZE] : 0;
}

// The blocks of a tile's keys and values, as tile_block has them.
struct TileBlocks {
    int keys;
    int values;  // not set where they lie in the keys' blocks
};

KVPLAN_INLINE TileBlocks tile_blocks(const int* table, const int* value_table, int tile_first, int last_token,
                                     int lane) {
    TileBlocks blocks;
    blocks.keys = tile_block(table, tile_first, last_token, lane);
    if constexpr (HAS_VALUE_TABLES) blocks.values = tile_block(value_table, tile_first, last_token, lane);
    return blocks;
}

// Begins the copy of one tile; tokens at or past last_token become zeros.
KVPLAN_INLINE void copy_tile(u8* stage, const Cache* keys, const AttentionParams& params, TileBlocks own, int tile_first,
                             int last_token, int lane) {
    constexpr int PIECES = TILE * ROW_CHUNKS;
    KVPLAN_UNROLL
    for (int i = 0; i < ceil_divide(PIECES, WARP_LANES); ++i) {
        const int piece = i * WARP_LANES + lane, row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS;
        const int block = BLOCK_SIZE % TILE == 0 ? own.keys : __shfl_sync(FULL_WARP, own.keys, row % TILE);
        int value_block = 0;
        if constexpr (HAS_VALUE_TABLES)
            value_block = BLOCK_SIZE % TILE == 0 ? own.values : __shfl_sync(FULL_WARP, own.values, row % TILE);
        if (PIECES % WARP_LANES != 0 && piece >= PIECES) continue;
        const Cache* source = keys + row_offset(block, tile_first + row, params);
        const Cache* values = source + params.value_offset;
        if constexpr (HAS_VALUE_TABLES)
            values = keys + params.value_offset + row_offset(value_block, tile_first + row, params);
        const bool wanted = tile_first + row < last_token;
        copy_async_16(stage + row * KEY_PITCH + chunk * 16, reinterpret_cast<const u8*>(source) + chunk * 16, wanted);
        copy_async_16(stage + TILE * KEY_PITCH + row * VALUE_PITCH + chunk * 16,
                      reinterpret_cast<const u8*>(values) + chunk * 16, wanted);
    }
}

// This lane's share of Q^T: head 8 n + g, the elements that its K reads meet.
KVPLAN_INLINE void load_query(u32 (&query)[COLUMN_TILES][K_STEPS][2], const Scalar* heads, int num_heads, int lane) {
    const int g = lane / 4, t = lane % 4;
    KVPLAN_UNROLL
    for (int n = 0; n < COLUMN_TILES; ++n) {
        const Scalar* row = heads + (8 * n + g) * HEAD_SIZE;
        const bool wanted = 8 * n + g < num_heads;
        KVPLAN_UNROLL
        for (int s = 0; s < K_STEPS; ++s) {
            const int element = s / 2 * 2 == K_STEPS - 1 ? 16 * s + 4 * t : s / 2 * 32 + 8 * t + s % 2 * 4;
            const uint2 four = wanted ? load_vector<uint2>(row + element) : uint2{0, 0};
            query[n][s][0] = pair_from_query(four.x), query[n][s][1] = pair_from_query(four.y);
        }
    }
}

// S^T of one tile, unscaled.
KVPLAN_INLINE void multiply_keys(float (&scores)[COLUMN_TILES][4], const u32 (&query)[COLUMN_TILES][K_STEPS][2],
                                 const u8* keys, int lane) {
    const u8* upper = keys + key_row(lane / 4) * KEY_PITCH;
    const u8* lower = upper + 8 * KEY_PITCH;
    const int t = lane % 4;
    KVPLAN_UNROLL
    for (int s = 0; s + 1 < K_STEPS; s += 2) {
        u32 up[4], low[4];
        load_pairs<8>(up, upper, 16 * s + 8 * t);
        load_pairs<8>(low, lower, 16 * s + 8 * t);
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const u32 a[4] = {up[2 * half], low[2 * half], up[2 * half + 1], low[2 * half + 1]};
            KVPLAN_UNROLL
            for (int n = 0; n < COLUMN_TILES; ++n) multiply_accumulate<Product>(scores[n], a, query[n][s + half]);
        }
    }
    if constexpr (K_STEPS % 2 == 1) {
        u32 up[2], low[2];
        load_pairs<4>(up, upper, 16 * (K_STEPS - 1) + 4 * t);
        load_pairs<4>(low, lower, 16 * (K_STEPS - 1) + 4 * t);
        const u32 a[4] = {up[0], low[0], up[1], low[1]};
        KVPLAN_UNROLL
        for (int n = 0; n < COLUMN_TILES; ++n) multiply_accumulate<Product>(scores[n], a, query[n][K_STEPS - 1]);
    }
}

// One online-softmax step over the tile; leaves P^T as mma B operands. newest: the query's position. first_column: the
// head of this lane's first column.
KVPLAN_INLINE void update_softmax(WarpState& state, float (&scores)[COLUMN_TILES][4], u32 (&weights)[COLUMN_TILES][2],
                                  const AttentionParams& params, int upper_token, int first_token, int last_token,
                                  int newest, int first_column) {
    const bool upper_seen = upper_token >= first_token && upper_token < last_token;
    const bool lower_seen = upper_token + 8 >= first_token && upper_token + 8 < last_token;
    KVPLAN_UNROLL
    for (int n = 0; n < COLUMN_TILES; ++n) {
        float p[4];
        KVPLAN_UNROLL
        for (int e = 0; e < 2; ++e) {
            const float slope = slope_of(first_column + 8 * n + e, params);
            const float upper =
                upper_seen ? base2_logit(scores[n][e], slope, upper_token - newest, params) : minus_infinity();
            const float lower =
                lower_seen ? base2_logit(scores[n][e + 2], slope, upper_token + 8 - newest, params) : minus_infinity();
            float largest = maximum(upper, lower);
            for (int mask = 4; mask < WARP_LANES; mask *= 2)
                largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
            largest = maximum(largest, state.largest[n][e]);
            const float reference = finite_or_zero(largest);
            const float rescale = fast_exp2(state.largest[n][e] - reference);
            p[e] = fast_exp2(upper - reference);
            p[e + 2] = fast_exp2(lower - reference);
            state.largest[n][e] = largest;
            state.total[n][e] = state.total[n][e] * rescale + p[e] + p[e + 2];
            KVPLAN_UNROLL
            for (int m = 0; m < K_STEPS; ++m) state.sums[n][m][e] *= rescale, state.sums[n][m][e + 2] *= rescale;
        }
        weights[n][0] = transpose_8x8(Pair<Product>::pack(p[0], p[1]));
        weights[n][1] = transpose_8x8(Pair<Product>::pack(p[2], p[3]));
    }
}

// O^T += V^T P^T for WIDTH elements from `element`; m tile first_tile + i holds elements element + WIDTH / 8 g + 2i and
// the next.
template <int WIDTH>
KVPLAN_INLINE void multiply_values(WarpState& state, const u32 (&weights)[COLUMN_TILES][2], const u8* values,
                                   int element, int lane) {
    constexpr int COUNT = WIDTH / 8;
    const int g = lane / 4, t = lane % 4, first_tile = element / 16;
    u32 rows[4][COUNT / 2];
    KVPLAN_UNROLL
    for (int r = 0; r < 4; ++r) load_pairs<COUNT>(rows[r], values + (t + 4 * r) * VALUE_PITCH, element + COUNT * g);
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT / 2; ++i) {
        const u32 a[4] = {low_halves(rows[0][i], rows[1][i]), high_halves(rows[0][i], rows[1][i]),
                          low_halves(rows[2][i], rows[3][i]), high_halves(rows[2][i], rows[3][i])};
        KVPLAN_UNROLL
        for (int n = 0; n < COLUMN_TILES; ++n)
            multiply_accumulate<Product>(state.sums[n][first_tile + i], a, weights[n]);
    }
}

KVPLAN_INLINE void multiply_all_values(WarpState& state, const u32 (&weights)[COLUMN_TILES][2], const u8* values,
                                       int lane) {
    constexpr int FULL = HEAD_SIZE / 64 * 64;
    KVPLAN_UNROLL
    for (int element = 0; element < FULL; element += 64) multiply_values<64>(state, weights, values, element, lane);
    if constexpr (HEAD_SIZE % 64 >= 32) multiply_values<32>(state, weights, values, FULL, lane);
    if constexpr (HEAD_SIZE % 32 == 16) multiply_values<16>(state, weights, values, HEAD_SIZE - 16, lane);
}

// The element that sums[.][tile][e] of lane (g, .) belongs to; e = 0, 1 is the first of two, e = 2, 3 the second.
KVPLAN_INLINE int element_of(int tile, int g, int e) {
    constexpr int FULL = HEAD_SIZE / 64 * 64;
    const int start = 16 * tile;
    if (start < FULL) return start / 64 * 64 + 8 * g + start % 64 / 8 + e / 2;
    if (HEAD_SIZE % 64 >= 32 && start < FULL + 32) return FULL + 4 * g + (start - FULL) / 8 + e / 2;
    return HEAD_SIZE - 16 + 2 * g + e / 2;
}

KVPLAN_INLINE void publish_state(MergeBuffers<HEADS>& buffers, WarpState& state, int num_heads, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    KVPLAN_UNROLL
    for (int n = 0; n < COLUMN_TILES; ++n) {
        KVPLAN_UNROLL
        for (int e = 0; e < 2; ++e) {
            for (int mask = 4; mask < WARP_LANES; mask *= 2)
                state.total[n][e] += __shfl_xor_sync(FULL_WARP, state.total[n][e], mask);
            const int head = 8 * n + 2 * t + e;
            if (head >= num_heads) continue;
            if (g == 0) buffers.largest[warp][head] = state.largest[n][e];
            if (g == 0) buffers.total[warp][head] = state.total[n][e];
            KVPLAN_UNROLL
            for (int m = 0; m < K_STEPS; ++m) {
                buffers.sums[warp][head][element_of(m, g, 0)] = state.sums[n][m][e];
                buffers.sums[warp][head][element_of(m, g, 2)] = state.sums[n][m][e + 2];
            }
        }
    }
}

// Attends over this warp's tiles: warp, warp + WARPS, ... of the item.
KVPLAN_INLINE void attend_tiles(WarpState& state, const Scalar* heads, int num_heads, u8* stages, const Cache* keys,
                                const AttentionParams& params, const DecodeItem& item, int first_head, int first_token,
                                int warp, int lane) {
    const int* table = params.block_tables + i64(item.sequence) * params.table_stride;
    const int newest = item.length - 1;
    const int* value_table = params.value_tables + i64(item.sequence) * params.table_stride;
    constexpr int STRIDE = WARPS * TILE;
    int copied = item.first_token + warp * TILE;  // first token of the next tile to copy
    TileBlocks blocks = tile_blocks(table, value_table, copied, item.last_token, lane);
    for (int s = 0; s < STAGES - 1; ++s) {
        if (copied < item.last_token)
            copy_tile(stages + s * STAGE_BYTES, keys, params, blocks, copied, item.last_token, lane);
        commit_copies();
        copied += STRIDE;
        blocks = tile_blocks(table, value_table, copied, item.last_token, lane);
    }
    u32 query[COLUMN_TILES][K_STEPS][2];
    load_query(query, heads, num_heads, lane);  // after the first copies, which take longer
    int read_stage = 0, write_stage = STAGES - 1;
    for (int tile = item.first_token + warp * TILE; tile < item.last_token; tile += STRIDE) {
        wait_copies<STAGES - 2>();
        __syncwarp();  // every lane's part of the tile is here, and nobody still reads the stage written next
        if (copied < item.last_token)
            copy_tile(stages + write_stage * STAGE_BYTES, keys, params, blocks, copied, item.last_token, lane);
        commit_copies();
        copied += STRIDE;
        blocks = tile_blocks(table, value_table, copied, item.last_token, lane);
        const u8* stage = stages + read_stage * STAGE_BYTES;
        float scores[COLUMN_TILES][4] = {};
        u32 weights[COLUMN_TILES][2];
        multiply_keys(scores, query, stage, lane);
        update_softmax(state, scores, weights, params, tile + key_row(lane / 4), first_token, item.last_token,
                       newest, first_head + lane % 4 * 2);
        multiply_all_values(state, weights, stage + TILE * KEY_PITCH, lane);
        write_stage = read_stage;
        read_stage = read_stage + 1 == STAGES ? 0 : read_stage + 1;
    }
    wait_copies<0>();
}

// grid (items, KV heads x HEAD_CHUNKS), block THREADS, dynamic shared memory as decode_mma_shared_bytes in Python.
KVPLAN_KERNEL(decode_attention, AttentionParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const DecodeItem item = static_cast<const DecodeItem*>(params.items)[blockIdx.x];
    if (item.sequence < 0) return;
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int kv_head = int(blockIdx.y) / HEAD_CHUNKS, chunk = int(blockIdx.y) % HEAD_CHUNKS;
    const int first_head = kv_head * GROUP + chunk * HEADS;
    const int num_heads = smaller(HEADS, GROUP - chunk * HEADS);
    const int token = item.query_token;
    const Scalar* heads =
        static_cast<const Scalar*>(params.query) + token * params.query_stride + first_head * HEAD_SIZE;
    const Cache* keys = static_cast<const Cache*>(params.kv) + i64(kv_head) * BLOCK_SIZE * HEAD_SIZE;

    WarpState state = {};
    KVPLAN_UNROLL
    for (int n = 0; n < COLUMN_TILES; ++n) state.largest[n][0] = state.largest[n][1] = minus_infinity();
    const int first_token = first_visible(item.length - 1, params);
    u8* stages = shared + warp * STAGES * STAGE_BYTES;
    attend_tiles(state, heads, num_heads, stages, keys, params, item, first_head, first_token, warp, lane);

    auto& buffers = *reinterpret_cast<MergeBuffers<HEADS>*>(shared);
    __syncthreads();  // every warp is done with its stages
    publish_state(buffers, state, num_heads, warp, lane);
    __syncthreads();
    finish_item<HEADS>(params, item, int(blockIdx.x), token, first_head, num_heads, buffers);
}
