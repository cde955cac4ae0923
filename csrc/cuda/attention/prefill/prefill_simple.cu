// Paged prefill attention without tensor cores: compute capability 7.x, and float32.
//
// A block owns a tile of rows and one KV head, a warp ROWS of the rows. K and V pass through shared memory as float32
// in tiles of 32 tokens: for S a lane is a token, for O += P V a lane is every 32nd element of the head.
#include "prefill_parts.cuh"

constexpr int ROWS = KVPLAN_ROWS_PER_WARP;
constexpr int TILE_ROWS = WARPS * ROWS;
constexpr int KV_TILE = WARP_LANES;
constexpr int PITCH = larger(HEAD_SIZE, VALUE_SIZE) + 1;  // floats; lanes that read 32 rows at once hit 32 banks
constexpr int OWN = ceil_divide(VALUE_SIZE, WARP_LANES);
constexpr int PART_FLOATS = THREADS * ROWS * (OWN + 2);  // all of a block's RowState

struct RowState {
    float largest[ROWS];
    float total[ROWS];
    float sums[ROWS][OWN];  // elements lane, lane + 32, ...
};

KVPLAN_INLINE RowState nothing() {
    RowState state = {};
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) state.largest[r] = minus_infinity();
    return state;
}

KVPLAN_INLINE void load_queries(float* target, const PrefillTile& tile, const AttentionParams& params) {
    for (int i = int(threadIdx.x); i < TILE_ROWS * HEAD_SIZE; i += THREADS) {
        const int row = i / HEAD_SIZE, element = i % HEAD_SIZE;
        const Scalar* query = static_cast<const Scalar*>(params.query);
        target[i] = row < tile.num_rows ? to_float(query[row_start(tile, row, params.query_stride) + element]) : 0.0f;
    }
}

// Positions [begin, begin + KV_TILE) of K or V, rows of SIZE elements STRIDE apart, as float32; those from kv_end on
// become zeros.
template <int SIZE, int STRIDE>
KVPLAN_INLINE void load_kv(float* target, const Cache* heads, const float* scales, const int* tables,
                           const PrefillTile& tile, int begin, const AttentionParams& params) {
    const int* table = tables + i64(tile.sequence) * params.table_stride;
    constexpr int VECTOR = Pack<Cache>::SIZE, ROW_VECTORS = SIZE / VECTOR;
    for (int i = int(threadIdx.x); i < KV_TILE * ROW_VECTORS; i += THREADS) {
        const int row = i / ROW_VECTORS, element = i % ROW_VECTORS * VECTOR, position = begin + row;
        Pack<Cache> pack;
        pack.vector = uint4{0, 0, 0, 0};
        float scale = 1.0f;
        if (position < tile.kv_end) {
            const int block = table[position / BLOCK_SIZE];
            const i64 start = block * params.block_stride + position % BLOCK_SIZE * STRIDE;
            pack = load_pack(heads + start + element);
            scale = scale_at(scales, block, position, params);
        }
        KVPLAN_UNROLL
        for (int e = 0; e < VECTOR; ++e) {
            const float value = to_float(pack.elements[e]);
            target[row * PITCH + element + e] = HAS_SCALES ? value * scale : value;
        }
    }
}

// The base-2 logits of position begin + lane for this warp's rows.
KVPLAN_INLINE void score_rows(float (&logits)[ROWS], const float* queries, const float* keys, const PrefillTile& tile,
                              int first_row, int begin, int lane, const AttentionParams& params) {
    float products[ROWS] = {};
    for (int element = 0; element < HEAD_SIZE; ++element) {
        const float key = keys[lane * PITCH + element];
        KVPLAN_UNROLL
        for (int r = 0; r < ROWS; ++r) products[r] += queries[(first_row + r) * HEAD_SIZE + element] * key;
    }
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        const int last = row_position(tile, first_row + r);
        const bool seen = begin + lane <= smaller(last, tile.kv_end - 1) && begin + lane >= first_visible(last, params);
        logits[r] = seen ? base2_logit(products[r], slope_of(row_head(tile, first_row + r), params), begin + lane - last, params)
                         : minus_infinity();
    }
}

// One online-softmax step; logits become weights.
KVPLAN_INLINE void update_softmax(RowState& state, float (&logits)[ROWS]) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        float largest = maximum(state.largest[r], logits[r]);
        for (int mask = 1; mask < WARP_LANES; mask *= 2)
            largest = maximum(largest, __shfl_xor_sync(FULL_WARP, largest, mask));
        const float rescale = fast_exp2(state.largest[r] - finite_or_zero(largest));
        logits[r] = fast_exp2(logits[r] - finite_or_zero(largest));
        state.largest[r] = largest;
        state.total[r] = state.total[r] * rescale + logits[r];
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) state.sums[r][i] *= rescale;
    }
}

KVPLAN_INLINE void add_values(RowState& state, const float (&weights)[ROWS], const float* values, int lane) {
    for (int token = 0; token < KV_TILE; ++token) {
        float weight[ROWS];
        KVPLAN_UNROLL
        for (int r = 0; r < ROWS; ++r) weight[r] = __shfl_sync(FULL_WARP, weights[r], token);
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) {
            const int element = i * WARP_LANES + lane;
            const float value =
                VALUE_SIZE % WARP_LANES == 0 || element < VALUE_SIZE ? values[token * PITCH + element] : 0.0f;
            KVPLAN_UNROLL
            for (int r = 0; r < ROWS; ++r) state.sums[r][i] += weight[r] * value;
        }
    }
}

// Number i of what this thread holds, in a slot.
KVPLAN_INLINE float& cell(float* slot, int i) { return slot[i * THREADS + int(threadIdx.x)]; }

KVPLAN_INLINE void leave(const RowState& state, float* slot) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        cell(slot, r) = state.largest[r], cell(slot, ROWS + r) = state.total[r];
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) cell(slot, (2 + i) * ROWS + r) = state.sums[r][i];
    }
}

KVPLAN_INLINE void take_in(RowState& state, float* slot) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        const Shares shares = shares_of(state.largest[r], load_from_l2(&cell(slot, r)), 1.0f);
        state.total[r] = merged(state.total[r], load_from_l2(&cell(slot, ROWS + r)), shares);
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i)
            state.sums[r][i] = merged(state.sums[r][i], load_from_l2(&cell(slot, (2 + i) * ROWS + r)), shares);
    }
}

KVPLAN_INLINE void write_rows(RowState& state, const PrefillTile& tile, int first_row, int lane,
                              const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        float total = state.total[r];
        for (int mask = 1; mask < WARP_LANES; mask *= 2) total += __shfl_xor_sync(FULL_WARP, total, mask);
        const int row = first_row + r;
        if (row >= tile.num_rows) continue;
        if constexpr (HAS_SINKS)
            total += fast_exp2(params.sinks[row_head(tile, row)] * LOG2_E - finite_or_zero(state.largest[r]));
        const float share = total == 0.0f ? 0.0f : params.value_scale / total;
        Scalar* target = static_cast<Scalar*>(params.out) + row_start<VALUE_SIZE>(tile, row, params.out_stride);
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) {
            const int element = i * WARP_LANES + lane;
            if (element < VALUE_SIZE) target[element] = from_float<Scalar>(state.sums[r][i] * share);
        }
    }
}

// grid (items, KV heads), block THREADS, dynamic shared memory of KV_TILE rows of PITCH and TILE_ROWS of HEAD_SIZE.
KVPLAN_KERNEL(prefill_attention, AttentionParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const PrefillItem item = static_cast<const PrefillItem*>(params.items)[blockIdx.x];
    if (item.sequence < 0) return;
    const PrefillTile tile = tile_of(item, TILE_ROWS, params);
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int first_row = warp * ROWS;
    float* kv_tile = reinterpret_cast<float*>(shared);  // K, then V, of the same tokens
    float* queries = kv_tile + KV_TILE * PITCH;
    const Cache *keys = keys_of(tile.kv_head, params), *values = values_of(tile.kv_head, params);
    const float* key_scales = key_scales_of(tile.kv_head, params);
    const float* value_scales = value_scales_of(tile.kv_head, params);

    load_queries(queries, tile, params);
    RowState state = nothing();
    for (int begin = tile.kv_begin; begin < tile.kv_end; begin += KV_TILE) {
        float weights[ROWS];
        load_kv<HEAD_SIZE, HEAD_SIZE>(kv_tile, keys, key_scales, params.block_tables, tile, begin, params);
        __syncthreads();
        score_rows(weights, queries, kv_tile, tile, first_row, begin, lane, params);
        __syncthreads();
        load_kv<VALUE_SIZE, VALUE_STRIDE>(kv_tile, values, value_scales, value_tables_of(params), tile, begin, params);
        update_softmax(state, weights);
        __syncthreads();
        add_values(state, weights, kv_tile, lane);
        __syncthreads();
    }
    if (item.num_parts > 1) {
        leave(state, slot_of(item, item.part, PART_FLOATS, params));
        if (!comes_last(item, reinterpret_cast<int*>(shared), params)) return;
        state = nothing();
        for (int part = 0; part < item.num_parts; ++part) take_in(state, slot_of(item, part, PART_FLOATS, params));
    }
    write_rows(state, tile, first_row, lane, params);
}
