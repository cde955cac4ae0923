// Paged decode attention without tensor cores: every compute capability from 7.0, and float32.
//
// A warp is cut into teams of LANES lanes; a team reads one token's row with one 16-byte load per lane (or VECTORS of
// them), takes the dot products with all heads of the chunk, and keeps an online softmax of its own. TOKENS tokens are
// read before any is used, so several loads are in flight.
#include "decode.cuh"

constexpr int VECTOR = 16 / int(sizeof(Cache));  // elements per load
constexpr int ROW_VECTORS = HEAD_SIZE / VECTOR;
constexpr int LANES = ROW_VECTORS > 16 ? 32 : ROW_VECTORS > 8 ? 16 : ROW_VECTORS > 4 ? 8 : 4;
constexpr int VECTORS = ceil_divide(ROW_VECTORS, LANES);
constexpr int TEAMS = WARP_LANES / LANES;
constexpr int VALUE_VECTORS = ceil_divide(VALUE_SIZE / VECTOR, LANES);
constexpr int TOKENS = VECTORS > 2 ? 1 : VECTORS > 1 || VECTOR > 8 ? 2 : 4;
// As many heads at once as the registers hold sums for.
constexpr int HEADS = smaller(GROUP, larger(1, 64 / (VECTOR * larger(VECTORS, VALUE_VECTORS))));
constexpr int HEAD_CHUNKS = ceil_divide(GROUP, HEADS);
constexpr int OWN = VECTOR * VECTORS;  // elements of a key in one lane
constexpr int OWN_VALUES = VECTOR * VALUE_VECTORS;

static_assert(HEAD_SIZE % VECTOR == 0 && VALUE_SIZE % VECTOR == 0);

struct TeamState {
    float largest[HEADS];
    float total[HEADS];
    float sums[HEADS][OWN_VALUES];
};

KVPLAN_INLINE int own_element(int team_lane, int i) { return (i / VECTOR * LANES + team_lane) * VECTOR + i % VECTOR; }

template <int SIZE, int COUNT>
KVPLAN_INLINE void load_row(float (&row)[COUNT], const Cache* source, int team_lane, bool wanted) {
    constexpr int PACKS = SIZE / VECTOR;
    KVPLAN_UNROLL
    for (int v = 0; v < COUNT / VECTOR; ++v) {
        const bool inside = wanted && (PACKS % LANES == 0 || v * LANES + team_lane < PACKS);
        Pack<Cache> pack;
        pack.vector = uint4{0, 0, 0, 0};
        if (inside) pack = load_pack(source + (v * LANES + team_lane) * VECTOR);
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) row[v * VECTOR + i] = to_float(pack.elements[i]);
    }
}

KVPLAN_INLINE void load_heads(float (&query)[HEADS][OWN], const Scalar* heads, int num_heads, int team_lane) {
    KVPLAN_UNROLL
    for (int h = 0; h < HEADS; ++h) {
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) {
            const int element = own_element(team_lane, i);
            query[h][i] = h < num_heads && element < HEAD_SIZE ? to_float(heads[h * HEAD_SIZE + element]) : 0.0f;
        }
    }
}

template <int COUNT>
KVPLAN_INLINE void scale_row(float (&row)[COUNT], float scale) {
    KVPLAN_UNROLL
    for (int i = 0; i < COUNT; ++i) row[i] *= scale;
}

// Adds one token to the state; one that is not seen has no weight. distance: from the query. first_head: of the query.
KVPLAN_INLINE void add_token(TeamState& state, const float (&query)[HEADS][OWN], const float (&key)[OWN],
                             const float (&value)[OWN_VALUES], bool seen, int distance, int first_head,
                             const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int h = 0; h < HEADS; ++h) {
        float product = 0.0f;
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) product += query[h][i] * key[i];
        for (int mask = 1; mask < LANES; mask *= 2) product += __shfl_xor_sync(FULL_WARP, product, mask);
        const float logit = seen ? base2_logit(product, slope_of(first_head + h, params), distance, params) : minus_infinity();
        const float largest = maximum(state.largest[h], logit);
        const float rescale = fast_exp2(state.largest[h] - finite_or_zero(largest));
        const float weight = fast_exp2(logit - finite_or_zero(largest));
        state.largest[h] = largest;
        state.total[h] = state.total[h] * rescale + weight;
        KVPLAN_UNROLL
        for (int i = 0; i < OWN_VALUES; ++i) state.sums[h][i] = state.sums[h][i] * rescale + weight * value[i];
    }
}

// Merges the teams of a warp; afterwards every team holds the warp's state.
KVPLAN_INLINE void merge_teams(TeamState& state) {
    for (int mask = LANES; mask < WARP_LANES; mask *= 2) {
        KVPLAN_UNROLL
        for (int h = 0; h < HEADS; ++h) {
            const float largest = maximum(state.largest[h], __shfl_xor_sync(FULL_WARP, state.largest[h], mask));
            const float rescale = fast_exp2(state.largest[h] - finite_or_zero(largest));
            state.largest[h] = largest;
            state.total[h] *= rescale;
            state.total[h] += __shfl_xor_sync(FULL_WARP, state.total[h], mask);
            KVPLAN_UNROLL
            for (int i = 0; i < OWN_VALUES; ++i) {
                state.sums[h][i] *= rescale;
                state.sums[h][i] += __shfl_xor_sync(FULL_WARP, state.sums[h][i], mask);
            }
        }
    }
}

KVPLAN_INLINE void attend_tokens(TeamState& state, const float (&query)[HEADS][OWN], const Cache* keys,
                                 const Cache* values, const AttentionParams& params, const DecodeItem& item, int first_head,
                                 int first_token, int warp, int team, int team_lane) {
    const int* table = params.block_tables + i64(item.sequence) * params.table_stride;
    const int newest = item.length - 1;
    const int* value_table = params.value_tables + i64(item.sequence) * params.table_stride;
    const int kv_head = first_head / GROUP;
    const float *key_scales = key_scales_of(kv_head, params), *value_scales = value_scales_of(kv_head, params);
    constexpr int STEP = TEAMS * TOKENS;  // of one warp
    for (int start = item.first_token + warp * STEP; start < item.last_token; start += WARPS * STEP) {
        float key[TOKENS][OWN], value[TOKENS][OWN_VALUES];
        bool seen[TOKENS];
        KVPLAN_UNROLL
        for (int i = 0; i < TOKENS; ++i) {
            const int position = start + i * TEAMS + team;
            seen[i] = position >= first_token && position < item.last_token;
            int block = seen[i] ? table[position / BLOCK_SIZE] : 0;
            load_row<HEAD_SIZE>(key[i], keys + row_offset(block, position, params), team_lane, seen[i]);
            if constexpr (HAS_SCALES)
                if (seen[i]) scale_row(key[i], scale_at(key_scales, block, position, params));
            if constexpr (HAS_VALUE_TABLES) block = seen[i] ? value_table[position / BLOCK_SIZE] : 0;
            load_row<VALUE_SIZE>(value[i], values + value_row_offset(block, position, params), team_lane, seen[i]);
            if constexpr (HAS_SCALES)
                if (seen[i]) scale_row(value[i], scale_at(value_scales, block, position, params));
        }
        KVPLAN_UNROLL
        for (int i = 0; i < TOKENS; ++i)
            add_token(state, query, key[i], value[i], seen[i], start + i * TEAMS + team - newest, first_head, params);
    }
}

// grid (items, KV heads x HEAD_CHUNKS), block THREADS, dynamic shared memory for the merge.
KVPLAN_KERNEL(decode_attention, AttentionParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(shared);
    const DecodeItem item = static_cast<const DecodeItem*>(params.items)[blockIdx.x];
    if (item.sequence < 0) return;
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int team = lane / LANES, team_lane = lane % LANES;
    const int kv_head = int(blockIdx.y) / HEAD_CHUNKS, chunk = int(blockIdx.y) % HEAD_CHUNKS;
    const int first_head = kv_head * GROUP + chunk * HEADS;
    const int num_heads = smaller(HEADS, GROUP - chunk * HEADS);
    const int token = item.query_token;
    const Scalar* heads =
        static_cast<const Scalar*>(params.query) + token * params.query_stride + first_head * HEAD_SIZE;
    const Cache *keys = keys_of(kv_head, params), *values = values_of(kv_head, params);

    float query[HEADS][OWN];
    load_heads(query, heads, num_heads, team_lane);
    TeamState state = {};
    KVPLAN_UNROLL
    for (int h = 0; h < HEADS; ++h) state.largest[h] = minus_infinity();
    const int first_token = first_visible(item.length - 1, params);
    attend_tokens(state, query, keys, values, params, item, first_head, first_token, warp, team, team_lane);
    merge_teams(state);

    auto& buffers = *reinterpret_cast<MergeBuffers<HEADS>*>(shared);
    KVPLAN_UNROLL
    for (int h = 0; h < HEADS; ++h) {
        if (h >= num_heads || team != 0) continue;
        if (team_lane == 0) buffers.largest[warp][h] = state.largest[h];
        if (team_lane == 0) buffers.total[warp][h] = state.total[h];
        KVPLAN_UNROLL
        for (int i = 0; i < OWN_VALUES; ++i) {
            const int element = own_element(team_lane, i);
            if (element < VALUE_SIZE) buffers.sums[warp][h][element] = state.sums[h][i];
        }
    }
    __syncthreads();
    finish_item<HEADS>(params, item, int(blockIdx.x), token, first_head, num_heads, buffers);
}
