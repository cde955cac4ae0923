// Paged prefill attention on tensor cores (sm_80 and newer): many query tokens per sequence, with or without a cached
// prefix, batches of any lengths.
//
// A block owns a tile of rows and one KV head. Its queries stay in shared memory; K and V pass through it in tiles of
// KV_TILE tokens, gathered by block table with cp.async: V arrives while S = Q K^T and the softmax are computed, the
// next K while O += P V is. Each warp has ROW_TILES times 16 rows and all of their softmax state in registers. P needs
// no shared memory: the C fragment of S has the layout of an A fragment.
//
// Registers: with heads of 128, a thread holds 128 sums, 64 scores and 8 numbers of its rows; 255 is all there are. What
// is written here so that nothing spills says so; csrc/cuda/README.md has the figures.
#include "prefill_shared.cuh"
#include "../../tensor_core.cuh"

constexpr int ROW_TILES = KVPLAN_ROW_TILES;  // of 16 rows, in each warp
constexpr int KV_TILE = KVPLAN_KV_TILE;
constexpr int WARP_ROWS = ROW_TILES * 16;
constexpr int TILE_ROWS = WARPS * WARP_ROWS;
constexpr int ROW_CHUNKS = HEAD_SIZE * 2 / 16;
constexpr int PITCH = (ROW_CHUNKS | 1) * 16;  // odd in 16 bytes: eight rows of ldmatrix lie in eight bank groups
constexpr int K_STEPS = HEAD_SIZE / 16;
constexpr int SCORE_TILES = KV_TILE / 8;
constexpr int PART_FLOATS = THREADS * ROW_TILES * (HEAD_SIZE / 2 + 4);  // all of a block's RowState

static_assert(sizeof(Scalar) == 2 && KV_TILE % 16 == 0);

template <int TILES>
struct RowsState {
    float largest[TILES][2];  // raw scores, rows g and g + 8
    float total[TILES][2];    // this lane's share
    float sums[TILES][HEAD_SIZE / 8][4];
};
using RowState = RowsState<ROW_TILES>;

KVPLAN_INLINE void copy_queries(u8* target, const PrefillTile& tile, const AttentionParams& params) {
    for (int piece = int(threadIdx.x); piece < TILE_ROWS * ROW_CHUNKS; piece += THREADS) {
        const int row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS;
        const bool wanted = row < tile.num_rows;
        const Scalar* source =
            static_cast<const Scalar*>(params.query) + (wanted ? query_start(tile, row, params) : 0);
        copy_async_16(target + row * PITCH + chunk * 16, source + chunk * 8, wanted);
    }
}

// This thread's number, from the register that has it.
KVPLAN_INLINE int thread_anew() {
#if defined(KVPLAN_HOST)
    return int(threadIdx.x);
#else
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
#endif
}

// The tile of item_anew.
KVPLAN_INLINE PrefillTile tile_anew(const AttentionParams& params) {
    return tile_of(item_anew(params), TILE_ROWS, params);
}

// Which 16 bytes of a tile's rows a thread copies: the same of rows COPY_ROWS apart, where that works out evenly with the
// pages. Then a page's address is computed once, and the rest is constant.
constexpr int COPY_ROWS = THREADS / ROW_CHUNKS;
constexpr int PAGE_ROWS = smaller(BLOCK_SIZE, KV_TILE);  // of a tile in one page
constexpr bool IS_EVEN = sizeof(Cache) == 2 && THREADS % ROW_CHUNKS == 0 && KV_TILE % PAGE_ROWS == 0 &&
                         BLOCK_SIZE % PAGE_ROWS == 0 && PAGE_ROWS % COPY_ROWS == 0;

// Begins the copy of positions [begin, begin + KV_TILE) of K or V; those from kv_end on become zeros.
KVPLAN_INLINE void copy_pages(u8* target, const Cache* heads, const int* tables, const PrefillTile& tile, int begin,
                              const AttentionParams& params) {
    const int thread = int(threadIdx.x), own_row = thread / ROW_CHUNKS, chunk = thread % ROW_CHUNKS;
    const int* table = tables + i64(tile.sequence) * params.table_stride + begin / BLOCK_SIZE;
    const Cache* own = heads + (own_row + begin % BLOCK_SIZE) * HEAD_SIZE + chunk * 8;
    u8* cell = target + own_row * PITCH + chunk * 16;
    const int num_rows = tile.kv_end - begin;
    KVPLAN_UNROLL
    for (int row = 0; row < KV_TILE; row += PAGE_ROWS) {
        const Cache* page = own + (row < num_rows ? table[row / BLOCK_SIZE] : 0) * params.block_stride;
        KVPLAN_UNROLL
        for (int i = 0; i < PAGE_ROWS; i += COPY_ROWS)
            copy_async_16(cell + (row + i) * PITCH, page + i * HEAD_SIZE, row + i + own_row < num_rows);
    }
}

// The same where a thread's rows are not even, or fp8 is converted on the way, which cp.async cannot do. AT_ONCE:
// addresses computed together, as many as registers are free.
template <int AT_ONCE>
KVPLAN_INLINE void copy_rows(u8* target, const Cache* heads, const int* tables, const PrefillTile& tile, int begin,
                             const AttentionParams& params) {
    const int* table = tables + i64(tile.sequence) * params.table_stride;
    KVPLAN_UNROLL_BY(AT_ONCE)
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
            store_vector<uint4>(cell, uint4{Pair<Scalar>::from_float8(raw.x, 0), Pair<Scalar>::from_float8(raw.x, 2),
                                            Pair<Scalar>::from_float8(raw.y, 0), Pair<Scalar>::from_float8(raw.y, 2)});
        }
    }
}

template <int AT_ONCE>
KVPLAN_INLINE void copy_kv(u8* target, const Cache* heads, const int* tables, const PrefillTile& tile, int begin,
                           const AttentionParams& params) {
    if constexpr (IS_EVEN) {
        copy_pages(target, heads, tables, tile, begin, params);
    } else {
        copy_rows<AT_ONCE>(target, heads, tables, tile, begin, params);
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

// tanh(x) from 2 log2(e) x: an error of 1e-7, far below a 16-bit score's, and none of tanhf's branches for each score.
KVPLAN_INLINE float fast_tanh(float exponent) { return 1.0f - 2.0f * fast_reciprocal(1.0f + fast_exp2(exponent)); }

// Adds slope times distance to the scores, which will be multiplied with `factor`.
KVPLAN_INLINE void add_slopes(float (&scores)[ROW_TILES][SCORE_TILES][4], const PrefillTile& tile, int begin,
                              int first_row, int lane, float factor, const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + r * 16 + half * 8 + lane / 4;
            const float slope = slope_of(row_head(tile, row), params) / factor;
            const int first_distance = begin + lane % 4 * 2 - row_position(tile, row);
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n) {
                KVPLAN_UNROLL
                for (int e = 0; e < 2; ++e)
                    scores[r][n][half * 2 + e] += slope * float(first_distance + n * 8 + e);
            }
        }
    }
}

// Softcap, then slopes, then -inf wherever a row does not see a position.
KVPLAN_INLINE void cap_and_mask(float (&scores)[ROW_TILES][SCORE_TILES][4], const PrefillTile& tile, int begin,
                                   int first_row, int lane, const AttentionParams& params) {
    const float scale = params.scale * params.key_scale;
    if constexpr (HAS_SOFTCAP) {
        const float exponent = 2.0f * LOG2_E * scale * fast_reciprocal(params.softcap);
        KVPLAN_UNROLL
        for (int r = 0; r < ROW_TILES; ++r) {
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n) {
                KVPLAN_UNROLL
                for (int e = 0; e < 4; ++e) scores[r][n][e] = params.softcap * fast_tanh(scores[r][n][e] * exponent);
            }
        }
    }
    if constexpr (HAS_SLOPES) add_slopes(scores, tile, begin, first_row, lane, HAS_SOFTCAP ? 1.0f : scale, params);
    if (all_visible(item_anew(params).first_position, begin, KV_TILE, TILE_ROWS, params)) return;
    const PrefillTile masked = tile_anew(params);
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int last = row_position(masked, first_row + r * 16 + half * 8 + lane / 4);
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
}

constexpr bool MAY_SKIP = !HAS_VALUE_TABLES;  // as registers allow

// One online-softmax step; scores become weights. They are summed in pairs, each of which P packs into one register:
// summed one by one, all of them stay in registers beside P until the sum has reached them.
KVPLAN_INLINE void update_softmax(RowState& state, float (&scores)[ROW_TILES][SCORE_TILES][4], float factor) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            float largest = state.largest[r][half];
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n)
                largest = larger_score(largest, larger_score(scores[r][n][half * 2], scores[r][n][half * 2 + 1]));
            largest = larger_score(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
            largest = larger_score(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
            const float reference = finite_or_zero(largest) * factor;
            const float rescale = fast_exp2(state.largest[r][half] * factor - reference);
            state.largest[r][half] = largest;
            float total = state.total[r][half] * rescale;
            KVPLAN_UNROLL
            for (int n = 0; n < SCORE_TILES; ++n) {
                float &first = scores[r][n][half * 2], &second = scores[r][n][half * 2 + 1];
                first = fast_exp2(first * factor - reference);
                second = fast_exp2(second * factor - reference);
                total += first + second;
            }
            state.total[r][half] = total;
            if (MAY_SKIP && !__any_sync(FULL_WARP, rescale != 1.0f)) continue;  // mostly no token outweighs all before it
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

// Numbers of one tile of rows in a slot that belong to this thread, THREADS apart. They come one by one: vectors would need
// sums in four registers side by side throughout the loop.
constexpr int PART_NUMBERS = HEAD_SIZE / 2 + 4;

KVPLAN_INLINE float* own_numbers(float* slot, int row_tile) {
    return slot + row_tile * PART_NUMBERS * THREADS + thread_anew();
}

KVPLAN_INLINE void leave(const RowState& state, float* slot) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) {
        float* numbers = own_numbers(slot, r);
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            numbers[half * THREADS] = state.largest[r][half];
            numbers[(2 + half) * THREADS] = state.total[r][half];
        }
        KVPLAN_UNROLL
        for (int i = 0; i < HEAD_SIZE / 2; ++i) numbers[(4 + i) * THREADS] = state.sums[r][i / 4][i % 4];
    }
}

// Merges what was left of one tile of rows.
KVPLAN_INLINE void take_in(RowsState<1>& state, const float* numbers, float factor) {
    Shares shares[2];
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        shares[half] = shares_of(state.largest[0][half], load_from_l2(numbers + half * THREADS), factor);
        float& total = state.total[0][half];
        total = merged(total, load_from_l2(numbers + (2 + half) * THREADS), shares[half]);
    }
    KVPLAN_UNROLL
    for (int i = 0; i < HEAD_SIZE / 2; ++i) {
        float& sum = state.sums[0][i / 4][i % 4];
        sum = merged(sum, load_from_l2(numbers + (4 + i) * THREADS), shares[i % 4 / 2]);
    }
}

// Divides by the sums of weights and leaves the rows as Scalar in `rows`, this warp's part of the query buffer.
template <int TILES>
KVPLAN_INLINE void stage_output(RowsState<TILES>& state, u8* rows, const PrefillTile& tile, int first_row, int lane,
                                float factor, const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int r = 0; r < TILES; ++r) {
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
            const float share = total == 0.0f ? 0.0f : params.value_scale * fast_reciprocal(total);
            KVPLAN_UNROLL
            for (int n = 0; n < HEAD_SIZE / 8; ++n) {
                const u32 pair =
                    Pair<Scalar>::pack(state.sums[r][n][half * 2] * share, state.sums[r][n][half * 2 + 1] * share);
                store_vector<u32>(rows + row * PITCH + n * 16 + lane % 4 * 4, pair);
            }
        }
    }
}

// What becomes of finished rows: outputs staged in `rows`, or of a shared prefix what decode takes in.
template <int TILES>
KVPLAN_INLINE void hand_over(RowsState<TILES>& state, u8* rows, const PrefillTile& tile, int first_row, int lane,
                             float factor, const AttentionParams& params) {
    if constexpr (IS_SHARED) {
        leave_to_decode<TILES>(state, tile, first_row, lane, factor, params);
    } else {
        stage_output(state, rows, tile, first_row, lane, factor, params);
    }
}

// The same from all parts of a tile, one tile of 16 rows after the other.
KVPLAN_INLINE void merge_parts(u8* rows, const PrefillItem& item, const PrefillTile& tile, int first_row, int lane,
                                       const AttentionParams& params) {
    KVPLAN_UNROLL_BY(1)
    for (int r = 0; r < ROW_TILES; ++r) {
        if (first_row + r * 16 >= tile.num_rows) return;
        RowsState<1> state = {};
        state.largest[0][0] = state.largest[0][1] = minus_infinity();
        KVPLAN_UNROLL_BY(1)
        for (int part = 0; part < item.num_parts; ++part)
            take_in(state, own_numbers(slot_of(item, part, PART_FLOATS, params), r), score_factor(params));
        hand_over(state, rows + r * 16 * PITCH, tile, first_row + r * 16, lane, score_factor(params), params);
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

    copy_queries(queries, tile, params);
    int begin = tile.kv_begin / KV_TILE * KV_TILE;  // where a page begins
    copy_kv<2>(keys, keys_of(int(blockIdx.y), params), params.block_tables, tile, begin, params);
    commit_copies();
    RowState state = {};
    KVPLAN_UNROLL
    for (int r = 0; r < ROW_TILES; ++r) state.largest[r][0] = state.largest[r][1] = minus_infinity();
    do {  // a row sees at least its own position
        wait_copies<0>();
        __syncthreads();  // K (and Q) are here, and nobody reads the last V any more
        copy_kv<4>(values, values_of(int(blockIdx.y), params), value_tables_of(params), tile, begin, params);
        commit_copies();
        float scores[ROW_TILES][SCORE_TILES][4] = {};
        multiply_keys(scores, queries + first_row * PITCH, keys, lane);
        cap_and_mask(scores, tile, begin, first_row, computed_anew(lane), params);
        update_softmax(state, scores, score_factor(params));
        wait_copies<0>();
        __syncthreads();  // V is here, and nobody reads this K any more
        if (begin + KV_TILE < tile.kv_end)
            copy_kv<2>(keys, keys_of(int(blockIdx.y), params), params.block_tables, tile, begin + KV_TILE, params);
        commit_copies();
        multiply_values(state, scores, values, lane);
        begin += KV_TILE;
    } while (begin < (HAS_SLOPES ? tile.kv_end : item_anew(params).last_token));  // as registers allow
    u8* rows = queries + first_row * PITCH;  // only this warp ever reads them
    const PrefillTile done = IS_EVEN ? tile_anew(params) : tile;  // as registers allow
    __syncwarp();
    if (item_anew(params).num_parts == 1) {
        hand_over(state, rows, done, first_row, lane, score_factor(params), params);
    } else {
        const PrefillItem& own = item_anew(params);
        if (first_row < done.num_rows) leave(state, slot_of(own, own.part, PART_FLOATS, params));
        if (!comes_last(own, reinterpret_cast<int*>(keys), params)) return;
        merge_parts(rows, own, done, first_row, lane, params);
    }
    __syncwarp();
    if constexpr (!IS_SHARED) write_output(rows, done, first_row, lane, params);
}
