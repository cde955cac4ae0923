// Latent attention on tensor cores (sm_80 and newer): all heads attend to one row per token, whose beginning is its value.
//
// A block owns ROWS rows, which are (new token, head) pairs, and some tokens: in decoding those of a work item, of which a
// sequence may have several, for prompts all that its rows see. Queries stay in shared memory; the tokens' rows pass through it in
// tiles of KV_TILE, one on its way while the other is used, and serve as keys and as values. Eight warps:
//
//     scores   warp w: rows 16 (w % 4) .., the half w / 4 of the tile's tokens; the halves meet in shared memory
//     values   warp w: the same rows, all tokens, the half w / 4 of the value's elements
//
// So both warps of 16 rows have the same scores and keep the same largest logit and sum.
#include "decode/decode.cuh"
#include "prefill/prefill_parts.cuh"
#include "../tensor_core.cuh"

constexpr int ROWS = 64;
constexpr int ROW_WARPS = ROWS / 16;
constexpr int KV_TILE = 32;
constexpr int ROW_CHUNKS = HEAD_SIZE * 2 / 16;
constexpr int PITCH = (ROW_CHUNKS | 1) * 16;  // odd in 16 bytes: eight rows of ldmatrix lie in eight bank groups
constexpr int SCORE_PITCH = KV_TILE + 4;      // floats
constexpr int K_STEPS = HEAD_SIZE / 16;
constexpr int OWN_VALUES = VALUE_SIZE / 2;  // of a warp
constexpr int COLUMN_TILES = OWN_VALUES / 8;

static_assert(sizeof(Scalar) == 2 && sizeof(Cache) == 2 && VALUES_IN_KEYS && WARPS == 8 && VALUE_SIZE % 32 == 0);

// Where this warp and lane work, and the block's shared memory.
struct Place {
    int row;   // of the tile: the first of the warp's 16
    int side;  // which half of the tokens, and of the value
    int lane;
    u8* queries;
    u8* stages[2];
    float* scores;
};

// Of rows g and g + 8 of the warp's.
struct State {
    float largest[2];  // base 2
    float total[2];    // this lane's share
    float sums[COLUMN_TILES][4];
};

KVPLAN_INLINE Place place_in(u8* shared) {
    Place place;
    const int warp = int(threadIdx.x) / WARP_LANES;
    place.row = warp % ROW_WARPS * 16;
    place.side = warp / ROW_WARPS;
    place.lane = int(threadIdx.x) % WARP_LANES;
    place.queries = shared;
    place.stages[0] = shared + ROWS * PITCH;
    place.stages[1] = place.stages[0] + KV_TILE * PITCH;
    place.scores = reinterpret_cast<float*>(place.stages[1] + KV_TILE * PITCH);
    return place;
}

KVPLAN_INLINE void copy_queries(u8* target, const PrefillTile& tile, const AttentionParams& params) {
    for (int piece = int(threadIdx.x); piece < ROWS * ROW_CHUNKS; piece += THREADS) {
        const int row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS;
        const bool wanted = row < tile.num_rows;
        const Scalar* source =
            static_cast<const Scalar*>(params.query) + (wanted ? row_start(tile, row, params.query_stride) : 0);
        copy_async_16(target + row * PITCH + chunk * 16, source + chunk * 8, wanted);
    }
}

constexpr int WARP_TOKENS = KV_TILE / WARPS;  // that a warp copies
constexpr bool IS_EVEN = BLOCK_SIZE % WARP_TOKENS == 0 && WARP_TOKENS * ROW_CHUNKS % WARP_LANES == 0;

// Begins the copy of tokens [begin, begin + KV_TILE); those from `end` on become zeros. begin is a multiple of KV_TILE.
//
// Where rows and pages divide evenly, a warp's tokens lie in one page, side by side: their address is computed once, and of
// each 16 bytes only which token they are of.
KVPLAN_INLINE void copy_rows(u8* target, const PrefillTile& tile, int begin, int end, const AttentionParams& params) {
    const int* table = params.block_tables + i64(tile.sequence) * params.table_stride;
    const Cache* keys = static_cast<const Cache*>(params.kv);
    if constexpr (IS_EVEN) {
        const int lane = int(threadIdx.x) % WARP_LANES, first_row = int(threadIdx.x) / WARP_LANES * WARP_TOKENS;
        const int first = begin + first_row, num_tokens = end - first;
        const Cache* source = keys + row_offset(num_tokens > 0 ? table[first / BLOCK_SIZE] : 0, first, params) + lane * 8;
        u8* own = target + first_row * PITCH + lane * 16;
        KVPLAN_UNROLL
        for (int chunk = 0; chunk < WARP_TOKENS * ROW_CHUNKS; chunk += WARP_LANES) {
            const int token = (chunk + lane) / ROW_CHUNKS;
            copy_async_16(own + chunk * 16 + token * (PITCH - ROW_CHUNKS * 16), source + chunk * 8, token < num_tokens);
        }
    } else {
        for (int piece = int(threadIdx.x); piece < KV_TILE * ROW_CHUNKS; piece += THREADS) {
            const int row = piece / ROW_CHUNKS, chunk = piece % ROW_CHUNKS, position = begin + row;
            const bool wanted = position < end;
            const int block = wanted ? table[position / BLOCK_SIZE] : 0;
            copy_async_16(target + row * PITCH + chunk * 16, keys + row_offset(block, position, params) + chunk * 8, wanted);
        }
    }
}

// The warp's half of the scores, unscaled, into shared memory.
KVPLAN_INLINE void score_tokens(const Place& place, const u8* rows) {
    const int lane = place.lane;
    const u8* query_row = place.queries + (place.row + lane % 16) * PITCH + lane / 16 * 16;
    const u8* key_row = rows + (place.side * 16 + lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    float scores[2][4] = {};
    KVPLAN_UNROLL_BY(4)
    for (int s = 0; s < K_STEPS; ++s) {
        u32 a[4], b[4];
        load_matrix_x4(a, query_row + s * 32);
        load_matrix_x4(b, key_row + s * 32);
        const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        multiply_accumulate<Scalar>(scores[0], a, first);
        multiply_accumulate<Scalar>(scores[1], a, second);
    }
    float* target = place.scores + (place.row + lane / 4) * SCORE_PITCH + place.side * 16 + lane % 4 * 2;
    KVPLAN_UNROLL
    for (int n = 0; n < 2; ++n) {
        KVPLAN_UNROLL
        for (int e = 0; e < 4; ++e) target[e / 2 * 8 * SCORE_PITCH + n * 8 + e % 2] = scores[n][e];
    }
}

// The tile's scores of the lane's two rows become weights, as fragments of the matrix that values are multiplied with.
KVPLAN_INLINE void weigh_tokens(State& state, u32 (&weights)[KV_TILE / 16][4], const Place& place,
                                const PrefillTile& tile, int begin, int end, const AttentionParams& params) {
    const int g = place.lane / 4, t = place.lane % 4;
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = place.row + g + half * 8, last = smaller(end - 1, row_position(tile, row));
        const float* source = place.scores + row * SCORE_PITCH;
        float logits[KV_TILE / 4], largest = state.largest[half];
        KVPLAN_UNROLL
        for (int i = 0; i < KV_TILE / 4; ++i) {
            const int token = i / 2 * 8 + 2 * t + i % 2;
            logits[i] = begin + token <= last ? base2_logit(source[token], 0.0f, 0, params) : minus_infinity();
            largest = maximum(largest, logits[i]);
        }
        largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        const float base = finite_or_zero(largest), rescale = fast_exp2(state.largest[half] - base);
        state.largest[half] = largest;
        state.total[half] *= rescale;
        KVPLAN_UNROLL
        for (int i = 0; i < KV_TILE / 4; ++i) {
            logits[i] = fast_exp2(logits[i] - base);
            state.total[half] += logits[i];
        }
        if (__any_sync(FULL_WARP, rescale != 1.0f)) {  // mostly no token outweighs all before it
            KVPLAN_UNROLL
            for (int n = 0; n < COLUMN_TILES; ++n) {
                state.sums[n][half * 2] *= rescale;
                state.sums[n][half * 2 + 1] *= rescale;
            }
        }
        KVPLAN_UNROLL
        for (int i = 0; i < KV_TILE / 8; ++i)
            weights[i / 2][i % 2 * 2 + half] = Pair<Scalar>::pack(logits[2 * i], logits[2 * i + 1]);
    }
}

KVPLAN_INLINE void add_values(State& state, const u32 (&weights)[KV_TILE / 16][4], const Place& place, const u8* rows) {
    const int lane = place.lane;
    const u8* value_row = rows + lane % 16 * PITCH + lane / 16 * 16 + place.side * OWN_VALUES * 2;
    KVPLAN_UNROLL
    for (int s = 0; s < KV_TILE / 16; ++s) {
        KVPLAN_UNROLL
        for (int n = 0; n < COLUMN_TILES; n += 2) {
            u32 b[4];
            load_matrix_x4_transposed(b, value_row + s * 16 * PITCH + n * 16);
            const u32 first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
            multiply_accumulate<Scalar>(state.sums[n], weights[s], first);
            multiply_accumulate<Scalar>(state.sums[n + 1], weights[s], second);
        }
    }
}

KVPLAN_INLINE State nothing() {
    State state = {};
    state.largest[0] = state.largest[1] = minus_infinity();
    return state;
}

// Attends to tokens [begin, end) of the tile's sequence. `total` is that of the whole rows afterwards.
KVPLAN_INLINE State attend(const PrefillTile& tile, const Place& place, int begin, int end,
                           const AttentionParams& params) {
    State state = nothing();
    const bool has_rows = place.row < tile.num_rows;
    copy_queries(place.queries, tile, params);
    copy_rows(place.stages[0], tile, begin, end, params);
    commit_copies();
    for (int number = 0; begin < end; ++number, begin += KV_TILE) {
        const u8* rows = number % 2 ? place.stages[1] : place.stages[0];
        if (begin + KV_TILE < end)
            copy_rows(number % 2 ? place.stages[0] : place.stages[1], tile, begin + KV_TILE, end, params);
        commit_copies();
        wait_copies<1>();
        __syncthreads();
        if (has_rows) score_tokens(place, rows);
        __syncthreads();
        if (has_rows) {
            u32 weights[KV_TILE / 16][4];
            weigh_tokens(state, weights, place, tile, begin, end, params);
            add_values(state, weights, place, rows);
        }
        __syncthreads();  // the stage may be filled again
    }
    wait_copies<0>();
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        state.total[half] += __shfl_xor_sync(FULL_WARP, state.total[half], 1);
        state.total[half] += __shfl_xor_sync(FULL_WARP, state.total[half], 2);
    }
    return state;
}

// Each row divided by its sum of weights.
KVPLAN_INLINE void write_rows(const State& state, const PrefillTile& tile, const Place& place,
                              const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = place.row + place.lane / 4 + half * 8;
        if (row >= tile.num_rows) continue;
        const float share = state.total[half] == 0.0f ? 0.0f : params.value_scale / state.total[half];
        Scalar* out = static_cast<Scalar*>(params.out) + row_start<VALUE_SIZE>(tile, row, params.out_stride) +
                      place.side * OWN_VALUES + place.lane % 4 * 2;
        KVPLAN_UNROLL
        for (int n = 0; n < COLUMN_TILES; ++n)
            store_vector<u32>(out + n * 8, Pair<Scalar>::pack(state.sums[n][half * 2] * share,
                                                              state.sums[n][half * 2 + 1] * share));
    }
}

#if defined(KVPLAN_DECODE)

// What this block has of an item that is not its sequence's only one.
KVPLAN_INLINE void write_partials(const State& state, const PrefillTile& tile, const Place& place, int item_number,
                                  const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = place.row + place.lane / 4 + half * 8;
        if (row >= tile.num_rows) continue;
        const i64 number = i64(item_number) * params.num_query_heads + row_head(tile, row);
        float* sums = params.partial_sums + number * VALUE_SIZE + place.side * OWN_VALUES + place.lane % 4 * 2;
        KVPLAN_UNROLL
        for (int n = 0; n < COLUMN_TILES; ++n) {
            sums[n * 8] = state.sums[n][half * 2];
            sums[n * 8 + 1] = state.sums[n][half * 2 + 1];
        }
        if (place.side != 0 || place.lane % 4 != 0) continue;
        params.partial_stats[number * 2] = state.largest[half];
        params.partial_stats[number * 2 + 1] = state.total[half];
    }
}

// grid (items, ceil(GROUP / ROWS)), block THREADS, dynamic shared memory of a Place.
KVPLAN_KERNEL(decode_attention, AttentionParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    __shared__ int is_last;
    const DecodeItem item = static_cast<const DecodeItem*>(params.items)[blockIdx.x];
    if (item.sequence < 0) return;
    PrefillTile tile;
    tile.sequence = item.sequence;
    tile.kv_head = 0;
    tile.first_token = item.query_token;
    tile.first_row = int(blockIdx.y) * ROWS;
    tile.num_rows = smaller(ROWS, GROUP - tile.first_row);
    tile.first_position = item.length - 1;
    tile.kv_begin = item.first_token;
    tile.kv_end = item.last_token;
    const Place place = place_in(shared);
    const State state = attend(tile, place, tile.kv_begin, tile.kv_end, params);
    if (item.num_items == 1) {
        write_rows(state, tile, place, params);
        return;
    }
    write_partials(state, tile, place, int(blockIdx.x), params);
    __threadfence();  // this thread's partials are visible before the block counts as finished
    __syncthreads();
    if (threadIdx.x == 0) {
        int* finished = params.finished + i64(item.sequence) * gridDim.y + blockIdx.y;
        is_last = atomicAdd(finished, 1) == item.num_items - 1;
        if (is_last) *finished = 0;  // ready for the next layer
        __threadfence();
    }
    __syncthreads();
    if (is_last)
        merge_items(params, item, tile.first_token, tile.first_row, tile.num_rows, reinterpret_cast<float*>(shared));
}

#else

constexpr int PART_FLOATS = THREADS * (COLUMN_TILES + 1) * 4;  // all of a block's State

// Vector i of what this thread holds, in a slot.
KVPLAN_INLINE float4* own_vector(float* slot, int i) {
    return reinterpret_cast<float4*>(slot) + i * THREADS + int(threadIdx.x);
}

KVPLAN_INLINE void leave(const State& state, float* slot) {
    *own_vector(slot, 0) = {state.largest[0], state.largest[1], state.total[0], state.total[1]};
    KVPLAN_UNROLL
    for (int n = 0; n < COLUMN_TILES; ++n)
        *own_vector(slot, 1 + n) = {state.sums[n][0], state.sums[n][1], state.sums[n][2], state.sums[n][3]};
}

KVPLAN_INLINE void take_in(State& state, float* slot) {
    const float4 row = load_from_l2(own_vector(slot, 0));
    const Shares upper = shares_of(state.largest[0], row.x, 1.0f);
    const Shares lower = shares_of(state.largest[1], row.y, 1.0f);
    state.total[0] = merged(state.total[0], row.z, upper), state.total[1] = merged(state.total[1], row.w, lower);
    KVPLAN_UNROLL
    for (int n = 0; n < COLUMN_TILES; ++n) {
        const float4 other = load_from_l2(own_vector(slot, 1 + n));
        float (&sums)[4] = state.sums[n];
        sums[0] = merged(sums[0], other.x, upper), sums[1] = merged(sums[1], other.y, upper);
        sums[2] = merged(sums[2], other.z, lower), sums[3] = merged(sums[3], other.w, lower);
    }
}

// grid (items, 1), block THREADS, dynamic shared memory of a Place.
KVPLAN_KERNEL(prefill_attention, AttentionParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const PrefillItem item = static_cast<const PrefillItem*>(params.items)[blockIdx.x];
    if (item.sequence < 0) return;
    const PrefillTile tile = tile_of(item, ROWS, params);
    const Place place = place_in(shared);
    State state = attend(tile, place, tile.kv_begin / KV_TILE * KV_TILE, tile.kv_end, params);
    const PrefillItem& own = item_anew(params);
    if (own.num_parts > 1) {
        leave(state, slot_of(own, own.part, PART_FLOATS, params));
        if (!comes_last(own, reinterpret_cast<int*>(shared), params)) return;
        state = nothing();
        KVPLAN_UNROLL_BY(1)
        for (int part = 0; part < own.num_parts; ++part) take_in(state, slot_of(own, part, PART_FLOATS, params));
    }
    write_rows(state, tile_of(own, ROWS, params), place_in(shared), params);
}

#endif
