// Paged prefill attention for compute capability 9.0 (sm_90a): the same work as prefill_mma.cu, by products of warp
// groups whose operands the copy engine brings.
//
// A block has a tile of 128 rows and one KV head, and a multiprocessor for itself. One warp, the producer, does nothing
// but begin copies (its warp group gives its registers to the others): 64 columns of a page of its KV head are one box
// of the pool's tensor map, and lie in shared memory in a panel of 128-byte rows, swizzled. Two warp groups of 64 rows
// each consume: S = Q K^T with both in shared memory, the softmax in registers, O += P V with P in registers, where S
// has left it. K and V each pass through a ring of STAGES tiles of KV_TILE tokens:
//
//     producer    waits until all warps have freed a stage, says how many bytes it expects, begins their copies;
//                 of a cache of fp8, all four of its warps write the stage as float16 from where boxes have come to
//     consumers   wait until these have come, multiply, wait for the product, free the stage
//
// While the weights of one tile multiply V, the scores of the next one are on their way already. The groups take turns
// ("ping-pong", as FlashAttention 3 has them): one begins the products of a tile, both of them, and then gives the turn
// to the other. So the tensor cores finish one group's products before the other's, and its softmax runs beside those:
//
//     group 0    S1 O0 | softmax 1     | S2 O1 | softmax 2     |
//     group 1          | S1 O0 | softmax 1     | S2 O1 | softmax 2
//
// Pages without a visible token are not copied. Their rows of V, and those behind the last token, are made zero, so that
// a weight of zero meets no NaN; rows of K may hold anything, since their scores are masked.
#include "prefill_parts.cuh"
#include "prefill_producer.cuh"
#include "../../warp_group.cuh"

constexpr int SCORES = KV_TILE / 2;  // of a thread: rows g and g + 8 of its warp's 16
constexpr int SUMS = HEAD_SIZE / 2;
constexpr int PART_FLOATS = CONSUMERS * (SUMS + 4);  // what all consumers leave of a part

// Named barriers: 1 and 2 are the groups' own, then comes that of all consumers, then the turns of group 0 and group 1.
constexpr int ALL_CONSUMERS = 1 + GROUPS, TURNS = 2 + GROUPS;

// A thread's place among the consumers.
struct Consumer {
    int group, warp, lane;  // the warp's number in its group

    KVPLAN_METHOD int first_row() const { return group * GROUP_ROWS + warp * 16; }  // of its warp
    KVPLAN_METHOD void sync_group() const { sync_some(1 + group, GROUP_THREADS); }
    KVPLAN_METHOD void take_turn() const { sync_some(TURNS + group, CONSUMERS); }
    KVPLAN_METHOD void give_turn() const { arrive_some(TURNS + 1 - group, CONSUMERS); }
};

struct RowState {
    float largest[2];  // raw scores, rows g and g + 8
    float total[2];    // this lane's share
    float sums[SUMS];
    u32 weights[KV_TILE / 16][4];  // P of the last tile, as A of a product
};

// Copies the group's rows of Q, as Product; rows past the tile's last become zeros.
KVPLAN_INLINE void copy_queries(u8* queries, const PrefillTile& tile, const Consumer& own,
                                const AttentionParams& params) {
    constexpr int chunks = HEAD_SIZE / 8;
    for (int piece = own.warp * WARP_LANES + own.lane; piece < GROUP_ROWS * chunks; piece += GROUP_THREADS) {
        const int row = own.group * GROUP_ROWS + piece / chunks, chunk = piece % chunks;
        const bool wanted = row < tile.num_rows;
        const Scalar* source = static_cast<const Scalar*>(params.query) +
                               (wanted ? row_start(tile, row, params.query_stride) : 0) + chunk * 8;
        u8* cell = queries + chunk / 8 * QUERY_PANEL + swizzled_place(row * PANEL_ROW_BYTES + chunk % 8 * 16);
        if constexpr (WIDENS) {
            const uint4 raw = wanted ? load_vector<uint4>(source) : uint4{0, 0, 0, 0};
            store_vector<uint4>(cell, uint4{pair_from_query(raw.x), pair_from_query(raw.y), pair_from_query(raw.z),
                                            pair_from_query(raw.w)});
        } else {
            copy_async_16(cell, source, wanted);
        }
    }
    commit_copies();
    wait_copies<0>();
    fence_async_proxy();
    own.sync_group();
}

// Begins S = Q K^T for the group's rows, unscaled.
KVPLAN_INLINE void multiply_keys(float (&scores)[SCORES], const u8* queries, const u8* keys, const Consumer& own) {
    const u64 query = panel_descriptor(shared_address(queries) + u32(own.group * GROUP_ROWS * PANEL_ROW_BYTES), 0);
    const u64 key = panel_descriptor(shared_address(keys), 0);
    settle(scores);
    fence_registers();
    KVPLAN_UNROLL
    for (int panel = 0; panel < PANELS; ++panel) {
        KVPLAN_UNROLL
        for (int step = 0; step < PANEL_COLUMNS / 16; ++step) {
            const u64 a = moved(query, panel * QUERY_PANEL + step * 32), b = moved(key, panel * KV_PANEL + step * 32);
            if (panel + step == 0) {
                multiply_shared<Product, KV_TILE, false>(scores, a, b);
            } else {
                multiply_shared<Product, KV_TILE, true>(scores, a, b);
            }
        }
    }
    commit_products();
}

// Begins O += P V for the group's rows.
KVPLAN_INLINE void multiply_values(RowState& state, const u8* values) {
    const u64 value = panel_descriptor(shared_address(values), KV_PANEL);
    settle(state.sums);
    fence_registers();
    KVPLAN_UNROLL
    for (int step = 0; step < KV_TILE / 16; ++step)
        multiply_registers<Product, HEAD_SIZE>(state.sums, state.weights[step],
                                              moved(value, step * 16 * PANEL_ROW_BYTES));
    commit_products();
}

// Waits for V, and makes its rows that no token of the tile has zero; all consumers together, so before a turn.
KVPLAN_INLINE void clear_values(u8* values, u64* here, u32 parity, const PrefillTile& tile, int begin,
                                const Consumer& own) {
    const int first = first_needed(tile, begin), end = end_needed(tile, begin);
    if (WIDENS || (first == 0 && end == KV_TILE)) return;  // of fp8 the producer clears them
    wait_phase(here, parity);
    const int thread = own.group * GROUP_THREADS + own.warp * WARP_LANES + own.lane;
    for (int piece = thread; piece < STAGE_BYTES / 16; piece += CONSUMERS) {
        const int row = piece % (KV_PANEL / 16) / 8;
        if (row < first || row >= end) store_vector<uint4>(values + piece * 16, uint4{0, 0, 0, 0});
    }
    fence_async_proxy();
    sync_some(ALL_CONSUMERS, CONSUMERS);
}

// Whether every row sees every position of the tile of KV from `begin` on, and all of them are this block's.
KVPLAN_INLINE bool is_whole(const PrefillTile& tile, int begin, const AttentionParams& params) {
    return begin >= larger(tile.kv_begin, first_visible(row_position(tile, TILE_ROWS), params)) &&
           begin + KV_TILE <= smaller(tile.kv_end, row_position(tile, 0) + 1);
}

// Softcap, then slopes times distances, which the softmax multiplies with `factor`.
KVPLAN_INLINE void cap_and_slope(float (&scores)[SCORES], const PrefillTile& tile, int begin, const Consumer& own,
                                 float factor, const AttentionParams& params) {
    if constexpr (HAS_SOFTCAP) {
        const float cap = params.softcap;
        const float exponent = 2.0f * LOG2_E * params.scale * params.key_scale * fast_reciprocal(cap);
        KVPLAN_UNROLL
        for (int i = 0; i < SCORES; ++i)  // tanh(x) = 1 - 2 / (1 + e^2x)
            scores[i] = cap - 2.0f * cap * fast_reciprocal(1.0f + fast_exp2(scores[i] * exponent));
    }
    if constexpr (HAS_SLOPES) {
        KVPLAN_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int row = own.first_row() + half * 8 + own.lane / 4;
            const float slope = slope_of(row_head(tile, row), params) * LOG2_E * fast_reciprocal(factor);
            const float distance = float(begin + own.lane % 4 * 2 - row_position(tile, row));  // of the first column
            KVPLAN_UNROLL
            for (int n = 0; n < KV_TILE / 8; ++n) {
                KVPLAN_UNROLL
                for (int e = 0; e < 2; ++e) scores[n * 4 + half * 2 + e] += slope * (distance + float(n * 8 + e));
            }
        }
    }
}

// -inf wherever a row does not see a position.
KVPLAN_INLINE void mask_scores(float (&scores)[SCORES], const PrefillTile& tile, int begin, const Consumer& own,
                               const AttentionParams& params) {
    if (is_whole(tile, begin, params)) return;
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        const int own_position = row_position(tile, own.first_row() + half * 8 + own.lane / 4);
        const int first = larger(tile.kv_begin, first_visible(own_position, params));
        const int last = smaller(tile.kv_end - 1, own_position);
        KVPLAN_UNROLL
        for (int n = 0; n < KV_TILE / 8; ++n) {
            KVPLAN_UNROLL
            for (int e = 0; e < 2; ++e) {
                const int position = begin + n * 8 + own.lane % 4 * 2 + e;
                if (position < first || position > last) scores[n * 4 + half * 2 + e] = minus_infinity();
            }
        }
    }
}

// One online-softmax step; scores become weights. rescale: what the sums until now are to be multiplied with.
KVPLAN_INLINE void update_softmax(RowState& state, float (&scores)[SCORES], float (&rescale)[2], float factor) {
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        float largest = state.largest[half];
        KVPLAN_UNROLL
        for (int n = 0; n < KV_TILE / 8; ++n)
            largest = larger_score(largest, larger_score(scores[n * 4 + half * 2], scores[n * 4 + half * 2 + 1]));
        largest = larger_score(largest, __shfl_xor_sync(FULL_WARP, largest, 1));
        largest = larger_score(largest, __shfl_xor_sync(FULL_WARP, largest, 2));
        const float reference = finite_or_zero(largest) * factor;
        rescale[half] = fast_exp2(state.largest[half] * factor - reference);
        state.largest[half] = largest;
        float total = state.total[half] * rescale[half];
        KVPLAN_UNROLL
        for (int n = 0; n < KV_TILE / 8; ++n) {
            float &first = scores[n * 4 + half * 2], &second = scores[n * 4 + half * 2 + 1];
            first = fast_exp2(first * factor - reference);
            second = fast_exp2(second * factor - reference);
            total += first + second;
        }
        state.total[half] = total;
    }
}

// Where no row of the warp has found a larger score, its factors are all 1 and nothing changes, not a bit.
KVPLAN_INLINE void rescale_sums(RowState& state, const float (&rescale)[2]) {
    if (!__any_sync(FULL_WARP, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
    KVPLAN_UNROLL
    for (int i = 0; i < SUMS; ++i) state.sums[i] *= rescale[i / 2 % 2];
}

// The weights as Product, as A of the product with V: S lies in registers as that wants it.
KVPLAN_INLINE void pack_weights(RowState& state, const float (&scores)[SCORES]) {
    KVPLAN_UNROLL
    for (int step = 0; step < KV_TILE / 16; ++step) {
        KVPLAN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int first = (2 * step + i / 2) * 4 + i % 2 * 2;
            state.weights[step][i] = Pair<Product>::pack(scores[first], scores[first + 1]);
        }
    }
}

// A warp no longer reads this stage.
KVPLAN_INLINE void free_stage(u64* barrier, const Consumer& own) {
    __syncwarp();
    if (own.lane == 0) arrive(barrier);
}

// O of the group's rows, not yet divided by the sums of weights. Both groups have as many turns, the first one first.
KVPLAN_INLINE void consume(RowState& state, const Shared& shared, const PrefillTile& tile, const Consumer& own,
                           const AttentionParams& params) {
    const float factor = score_factor(params);
    float scores[SCORES], rescale[2];
    int begin = tile.kv_begin / KV_TILE * KV_TILE;
    Place place = {0, 0};
    if (own.group == 1) own.give_turn();
    wait_phase(shared.keys_here, 0);
    own.take_turn();
    multiply_keys(scores, shared.queries, shared.keys, own);
    own.give_turn();
    wait_products<0>();
    settle(scores);
    free_stage(shared.keys_free, own);
    cap_and_slope(scores, tile, begin, own, factor, params);
    mask_scores(scores, tile, begin, own, params);
    update_softmax(state, scores, rescale, factor);
    pack_weights(state, scores);
    for (int next_begin = begin + KV_TILE; next_begin < tile.kv_end; next_begin += KV_TILE) {
        const Place next = place.next();
        u8* values = shared.values + place.stage * STAGE_BYTES;
        u64* values_here = shared.values_here + place.stage;
        clear_values(values, values_here, place.parity, tile, begin, own);
        wait_phase(shared.keys_here + next.stage, next.parity);
        own.take_turn();
        multiply_keys(scores, shared.queries, shared.keys + next.stage * STAGE_BYTES, own);
        wait_phase(values_here, place.parity);
        multiply_values(state, values);
        own.give_turn();
        wait_products<1>();  // the scores are here
        settle(scores);
        free_stage(shared.keys_free + next.stage, own);
        cap_and_slope(scores, tile, next_begin, own, factor, params);
        mask_scores(scores, tile, next_begin, own, params);
        update_softmax(state, scores, rescale, factor);
        wait_products<0>();  // the sums are here, and nobody reads the last weights any more
        settle(state.sums);
        free_stage(shared.values_free + place.stage, own);
        rescale_sums(state, rescale);
        pack_weights(state, scores);
        begin = next_begin;
        place = next;
    }
    u8* values = shared.values + place.stage * STAGE_BYTES;
    u64* values_here = shared.values_here + place.stage;
    clear_values(values, values_here, place.parity, tile, begin, own);
    wait_phase(values_here, place.parity);
    own.take_turn();
    multiply_values(state, values);
    if (own.group == 0) own.give_turn();
    wait_products<0>();
    settle(state.sums);
}

// A thread's numbers in a slot lie CONSUMERS apart.
KVPLAN_INLINE void leave(const RowState& state, float* slot) {
    float* numbers = slot + threadIdx.x;
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        numbers[half * CONSUMERS] = state.largest[half];
        numbers[(2 + half) * CONSUMERS] = state.total[half];
    }
    KVPLAN_UNROLL
    for (int i = 0; i < SUMS; ++i) numbers[(4 + i) * CONSUMERS] = state.sums[i];
}

KVPLAN_INLINE void take_in(RowState& state, const float* slot, float factor) {
    const float* numbers = slot + threadIdx.x;
    Shares shares[2];
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        shares[half] = shares_of(state.largest[half], load_from_l2(numbers + half * CONSUMERS), factor);
        state.total[half] = merged(state.total[half], load_from_l2(numbers + (2 + half) * CONSUMERS), shares[half]);
    }
    KVPLAN_UNROLL
    for (int i = 0; i < SUMS; ++i)
        state.sums[i] = merged(state.sums[i], load_from_l2(numbers + (4 + i) * CONSUMERS), shares[i / 2 % 2]);
}

// Leaves this block's part of a tile. Whether it was the last one, and `state` is now that of the whole tile.
KVPLAN_INLINE bool merge_parts(RowState& state, const PrefillItem& item, int* is_last, const AttentionParams& params) {
    leave(state, slot_of(item, item.part, PART_FLOATS, params));
    if (!comes_last(item, is_last, params, [] { sync_some(ALL_CONSUMERS, CONSUMERS); })) return false;
    state = {};
    state.largest[0] = state.largest[1] = minus_infinity();
    for (int part = 0; part < item.num_parts; ++part)
        take_in(state, slot_of(item, part, PART_FLOATS, params), score_factor(params));
    return true;
}

// Divides by the sums of weights and leaves the warp's rows as Scalar where its queries were.
KVPLAN_INLINE void stage_output(const RowState& state, u8* rows, const PrefillTile& tile, const Consumer& own,
                                const AttentionParams& params) {
    KVPLAN_UNROLL
    for (int half = 0; half < 2; ++half) {
        const int row = own.first_row() + half * 8 + own.lane / 4;
        float total = state.total[half];
        total += __shfl_xor_sync(FULL_WARP, total, 1);
        total += __shfl_xor_sync(FULL_WARP, total, 2);
        if constexpr (HAS_SINKS) {
            const float sink = params.sinks[row_head(tile, row)] * LOG2_E;
            total += fast_exp2(sink - finite_or_zero(state.largest[half]) * score_factor(params));
        }
        const float share = total == 0.0f ? 0.0f : params.value_scale * fast_reciprocal(total);
        KVPLAN_UNROLL
        for (int n = 0; n < HEAD_SIZE / 8; ++n) {
            const u32 pair = Pair<Scalar>::pack(state.sums[n * 4 + half * 2] * share,
                                                state.sums[n * 4 + half * 2 + 1] * share);
            const int place = swizzled_place(row * PANEL_ROW_BYTES + n % 8 * 16) + own.lane % 4 * 4;
            store_vector<u32>(rows + n / 8 * QUERY_PANEL + place, pair);
        }
    }
}

KVPLAN_INLINE void write_output(const u8* rows, const PrefillTile& tile, const Consumer& own,
                                const AttentionParams& params) {
    constexpr int chunks = HEAD_SIZE / 8;
    for (int piece = own.lane; piece < 16 * chunks; piece += WARP_LANES) {
        const int row = own.first_row() + piece / chunks, chunk = piece % chunks;
        if (row >= tile.num_rows) break;
        Scalar* target = static_cast<Scalar*>(params.out) + row_start(tile, row, params.out_stride);
        const int place = swizzled_place(row * PANEL_ROW_BYTES + chunk % 8 * 16);
        store_vector<uint4>(target + chunk * 8, load_vector<uint4>(rows + chunk / 8 * QUERY_PANEL + place));
    }
}

KVPLAN_INLINE void attend_rows(const Shared& shared, const PrefillItem& item, const PrefillTile& tile,
                               const Consumer& own, const AttentionParams& params) {
    copy_queries(shared.queries, tile, own, params);
    RowState state = {};
    state.largest[0] = state.largest[1] = minus_infinity();
    consume(state, shared, tile, own, params);
    int* is_last = reinterpret_cast<int*>(shared.keys);
    if (item.num_parts > 1 && !merge_parts(state, item, is_last, params)) return;
    own.sync_group();  // nobody reads the group's queries any more
    stage_output(state, shared.queries, tile, own, params);
    __syncwarp();
    write_output(shared.queries, tile, own, params);
}

// grid (items, KV heads), block THREADS, dynamic shared memory PANEL_ALIGNMENT + PANELS * QUERY_PANEL +
// 2 * (STAGES * STAGE_BYTES + STAGED_BYTES) and 8 bytes for each barrier.
KVPLAN_LONE_KERNEL(prefill_attention, PrefillWgmmaParams, THREADS) {
    KVPLAN_DYNAMIC_SHARED(memory);
    const PrefillItem item = static_cast<const PrefillItem*>(params.attention.items)[blockIdx.x];
    if (item.sequence < 0) return;
    const PrefillTile tile = tile_of(item, TILE_ROWS, params.attention);
    const Shared shared = divide_shared(memory);
    const int thread = int(threadIdx.x), warp = thread / WARP_LANES, lane = thread % WARP_LANES;
    if (thread == CONSUMERS) {
        prefetch_map(params.keys);
        prefetch_map(params.values);
        make_barriers(shared);
    }
    __syncthreads();
    if (warp >= CONSUMERS / WARP_LANES) {
        give_registers<PRODUCER_REGISTERS>();
        if (WIDENS || warp == CONSUMERS / WARP_LANES) produce(shared, tile, thread - CONSUMERS, params);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        const int group = __shfl_sync(FULL_WARP, thread / GROUP_THREADS, 0);  // so the compiler knows: one for a warp
        attend_rows(shared, item, tile, {group, warp % 4, lane}, params.attention);
    }
}
