// Paged prefill attention on tensor cores (sm_80 and newer): many query tokens per sequence, with or without a cached
// prefix, batches of any lengths.
//
// A block owns a tile of rows and one KV head. Its queries stay in shared memory; K and V pass through it in tiles of
// KV_TILE tokens, gathered by block table with cp.async: V arrives while S = Q K^T is computed, the next K while the
// softmax and O += P V are. Each warp has ROW_TILES times 16 rows and all of their softmax state in registers. P needs
// no shared memory: the C fragment of S has the layout of an A fragment.
#include "prefill.cuh"
#include "tensor_core.cuh"

constexpr int ROW_TILES = KVPLAN_ROW_TILES;  // of 16 rows, in each warp
constexpr int KV_TILE = KVPLAN_KV_TILE;
constexpr int WARP_ROWS = ROW_TILES * 16;
constexpr int TILE_ROWS = WARPS * WARP_ROWS;
constexpr int ROW_CHUNKS = HEAD_SIZE * 2 / 16;
constexpr int PITCH = (ROW_CHUNKS | 1) * 16;  // odd in 16 bytes: eight rows of ldmatrix lie in eight bank groups
constexpr int K_STEPS = HEAD_SIZE / 16;
constexpr int SCORE_TILES = KV_TILE / 8;

static_assert(sizeof(Scalar) == 2 && KV_TILE % 16 == 0);

struct RowState {
    float largest[ROW_TILES][2];  // raw scores, rows g and g + 8
    float total[ROW_TILES][2];    // this lane's share
    float sums[ROW_TILES][HEAD_SIZE / 8][4];
};

KVPLAN_INLINE void copy_queries(u8* target, const PrefillTile& tile, const AttentionParams& params) {
    for (int piece = int(threadIdx.x); piece < TILE_ROWS * ROW_CHUNKS; piece += THREADS) {
        const int row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS;
        const bool wanted = row < tile.num_rows;
        const Scalar* source =
            static_cast<const Scalar*>(params.query) + (wanted ? row_start(tile, row, params.query_stride) : 0);
        copy_async_16(target + row * PITCH + chunk * 16, source + chunk * 8, wanted);
    }
}

// Begins the copy of positions [begin, begin + KV_TILE) of K or V; those from kv_end on become zeros. fp8 is converted
// on the way, which cp.async cannot do.
KVPLAN_INLINE void copy_kv(u8* target, const Cache* heads, const PrefillTile& tile, int begin,
                           const AttentionParams& params) {
    const int* table = params.block_tables + i64(tile.sequence) * params.table_stride;
    KVPLAN_UNROLL_BY_2  // more addresses at once would not fit the registers beside the sums
    for (int i = 0; i < ceil_divide(KV_TILE * ROW_CHUNKS, THREADS); ++i) {
        const int piece = i * THREADS + int(threadIdx.x), row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS;
        if (KV_TILE * ROW_CHUNKS % THREADS != 0 && row >= KV_TILE) continue;
        const int position = begin + row;
        const bool wanted = position < tile.kv_end;
        const Cache* source =
            heads + row_offset(wanted ? table[position / BLOCK_SIZE] : 0, position, params) + chunk * 8;
        u8* cell = target + row * PITCH + chunk * 16;
        if constexpr (sizeof(Cache) == 2) {
            copy_async_16(cell, source, wanted);
        } else {
            const uint2 raw = wanted ? load_vector<uint2>(source) : uint2{0, 0};
            store_vector<uint4>(cell, uint4{Pair<Scalar>::from_float8(raw.x), Pair<Scalar>::from_float8(raw.x >> 16),
                                            Pair<Scalar>::from_float8(raw.y), Pair<Scalar>::from_float8(raw.y >> 16)});
        }
    }
}

// S = Q K^T for this warp's rows, unscaled.
KVPLAN_INLINE void multiply_keys(float (&scores)[ROW_TILES][SCORE_TILES][4], const u8* queries, const u8* keys,
                                 int lane) {
    const u8* query_row = queries + lane % 16 * PITCH + lane / 16 * 16;
    const u8* key_row = keys + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    KVPLAN_UNROLL
    for (int s = 0; s < K_STEPS; ++s) {
        u32 a[ROW_TILES][4];
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) load_matrix_x4(a[r], query_row + r * 16 * PITCH + s * 32);
        KVPLAN_UNROLL
        for (int n = 0; n < SCORE_TILES; n += 2) {
            u32 b[4];
            load_matrix_x4(b, key_row + n * 8 * PITCH + s * 32);
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            KVPLAN_UNROLL
            for (int r = 0; r < ROW_TILES; ++r) {
                multiply_accumulate<Scalar>(scores[r][n], a[r], first);
                multiply_accumulate<Scalar>(scores[r][n + 1], a[r], second);
            }
        }
    }
}

// Softcap, then -inf wherever a row does not see a position. Returns what a score is multiplied with for base 2.
KVPLAN_INLINE float scale_and_mask(float (&scores)[ROW_TILES][SCORE_TILES][4], const PrefillTile& tile, int begin,
                                   int first_row, int lane, const AttentionParams& params) {
    const float scale = params.scale * params.key_scale;
    if constexpr (HAS_SOFTCAP) {
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) {
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n) {
                KVPLAN_UNROLL
                for (int e = 0; e < 4; ++e)
                    scores[r][n][e] = params.softcap * tanhf(scores[r][n][e] * scale / params.softcap);
            }
        }
    }
    const float factor = (HAS_SOFTCAP ? 1.0f : scale) * LOG2_E;
    if (all_visible(tile, begin, KV_TILE, params)) return factor;
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int last = row_position(tile, first_row + r * 16 + half * 8 + lane / 4);
            const int first = first_visible(last, params);
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n) {
                KVPLAN_UNROLL
                for (int e = 0; e < 2; ++e) {
                    const int position = begin + n * 8 + lane % 4 * 2 + e;
                    if (position < first || position > last) scores[r][n][half * 2 + e] = minus_infinity();
                }
            }
        }
    }
    return factor;
}

// One online-softmax step; scores become weights.
KVPLAN_INLINE void update_softmax(RowState& state, float (&scores)[ROW_TILES][SCORE_TILES][4], float factor) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            float largest = state.largest[r][half];
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n)
                largest = maximum(largest, maximum(scores[r][n][half * 2], scores[r][n][half * 2 + 1]));
            largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            const float reference = finite_or_zero(largest) * factor;
            const float rescale = fast_exp2(state.largest[r][half] * factor - reference);
            state.largest[r][half] = largest;
            float total = state.total[r][half] * rescale;
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n) {
                KVPLAN_UNROLL
                for (int e = half * 2; e < half * 2 + 2; ++e) {
                    scores[r][n][e] = fast_exp2(scores[r][n][e] * factor - reference);
                    total += scores[r][n][e];
                }
            }
            state.total[r][half] = total;
            KVPLAN_UNROLL
            for (int n = 0; n < HEAD_SIZE / 8; ++n) {
                state.sums[r][n][half * 2] *= rescale;
                state.sums[r][n][half * 2 + 1] *= rescale;
            }
        }
    }
}

// O += P V for this warp's rows.
KVPLAN_INLINE void multiply_values(RowState& state, const float (&weights)[ROW_TILES][SCORE_TILES][4], const u8* values,
                                   int lane) {
    const u8* value_row = values + lane % 16 * PITCH + lane / 16 * 16;
    KVPLAN_UNROLL
    for (int s = 0; s < KV_TILE / 16; ++s) {
        u32 a[ROW_TILES][4];
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) {
            KVPLAN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float (&tile)[4] = weights[r][2 * s + i / 2];
                a[r][i] = Pair<Scalar>::pack(tile[i % 2 * 2], tile[i % 2 * 2 + 1]);
            }
        }
        KVPLAN_UNROLL
        for (int n = 0; n < HEAD_SIZE / 8; n += 2) {
            u32 b[4];
            load_matrix_x4_transposed(b, value_row + s * 16 * PITCH + n * 16);
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            KVPLAN_UNROLL
            for (int r = 0; r < ROW_TILES; ++r) {
                multiply_accumulate<Scalar>(state.sums[r][n], a[r], first);
                multiply_accumulate<Scalar>(state.sums[r][n + 1], a[r], second);
            }
        }
    }
}

// Divides by the sums of weights and leaves the rows as Scalar in `rows`, this warp's part of the query buffer.
KVPLAN_INLINE void stage_output(RowState& state, u8* rows, const PrefillTile& tile, int first_row, int lane,
                                float factor, const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = r * 16 + half * 8 + lane / 4;
            float total = state.total[r][half];
            total += __shfl_xor_sync(FULL_WARP, total, 1);
            total += __shfl_xor_sync(FULL_WARP, total, 2);
            if constexpr (HAS_SINKS) {
                const float sink = params.sinks[row_head(tile, first_row + row)] * LOG2_E;
                total += fast_exp2(sink - finite_or_zero(state.largest[r][half]) * factor);
            }
            const float share = total > 0.0f ? params.value_scale / total : 0.0f;
            KVPLAN_UNROLL
            for (int n = 0; n < HEAD_SIZE / 8; ++n) {
                const u32 pair =
                    Pair<Scalar>::pack(state.sums[r][n][half * 2] * share, state.sums[r][n][half * 2 + 1] * share);
                store_vector<u32>(rows + row * PITCH + n * 16 + lane % 4 * 4, pair);
            }
        }
    }
}

KVPLAN_INLINE void write_output(const u8* rows, const PrefillTile& tile, int first_row, int lane,
                                const AttentionParams& params) {
    for (int piece = lane; piece < WARP_ROWS * ROW_CHUNKS; piece += WARP_LANES) {
        const int row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS;
        if (first_row + row >= tile.num_rows) break;
        Scalar* target = static_cast<Scalar*>(params.out) + row_start(tile, first_row + row, params.out_stride);
        store_vector<uint4>(target + chunk * 8, load_vector<uint4>(rows + row * PITCH + chunk * 16));
    }
}

// grid (items, KV heads), block THREADS, dynamic shared memory PITCH * (TILE_ROWS + 2 * KV_TILE).
KVPLAN_KERNEL(prefill_attention, AttentionParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const PrefillItem item = static_cast<const PrefillItem*>(params.items)[blockIdx.x];
    if (item.sequence < 0) return;
    const PrefillTile tile = tile_of(item, TILE_ROWS, params);
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int first_row = warp * WARP_ROWS;
    u8* queries = shared;
    u8* keys = queries + TILE_ROWS * PITCH;
    u8* values = keys + KV_TILE * PITCH;
    const Cache* key_head = static_cast<const Cache*>(params.kv) + i64(tile.kv_head) * BLOCK_SIZE * HEAD_SIZE;

    copy_queries(queries, tile, params);
    copy_kv(keys, key_head, tile, tile.kv_begin, params);
    commit_copies();
    RowState state = {};
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) state.largest[r][0] = state.largest[r][1] = minus_infinity();
    float factor = LOG2_E;
    for (int begin = tile.kv_begin; begin < tile.kv_end; begin += KV_TILE) {
        wait_copies<0>();
        __syncthreads();  // K (and Q) are here, and nobody reads the last V any more
        copy_kv(values, key_head + params.value_offset, tile, begin, params);
        commit_copies();
        float scores[ROW_TILES][SCORE_TILES][4] = {};
        multiply_keys(scores, queries + first_row * PITCH, keys, lane);
        factor = scale_and_mask(scores, tile, begin, first_row, lane, params);
        wait_copies<0>();
        __syncthreads();  // V is here, and nobody reads this K any more
        if (begin + KV_TILE < tile.kv_end) copy_kv(keys, key_head, tile, begin + KV_TILE, params);
        commit_copies();
        update_softmax(state, scores, factor);
        multiply_values(state, scores, values, lane);
    }
    u8* rows = queries + first_row * PITCH;  // only this warp ever reads them
    __syncwarp();
    stage_output(state, rows, tile, first_row, lane, factor, params);
    __syncwarp();
    write_output(rows, tile, first_row, lane, params);
}
