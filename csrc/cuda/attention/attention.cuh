// What every attention kernel shares: the argument structure, the compile-time shape, work items, and paged addresses.
//
// The pool is block-major:  kv[block][layer][K, V][kv head][offset in block][element], so token `position` of a
// sequence lies in block  block_tables[sequence][position / BLOCK_SIZE]  at offset  position % BLOCK_SIZE.
//
// Each kernel is compiled for one model shape; the macros below come from the compiler's command line.
#pragma once

#include "../types.cuh"

using Scalar = KVPLAN_SCALAR;  // of queries and outputs
using Cache = KVPLAN_CACHE;    // of the pool
constexpr int HEAD_SIZE = KVPLAN_HEAD_SIZE;
constexpr int BLOCK_SIZE = KVPLAN_BLOCK_SIZE;
constexpr int GROUP = KVPLAN_GROUP;  // query heads that share one KV head
constexpr int WARPS = KVPLAN_WARPS;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr bool HAS_SOFTCAP = KVPLAN_SOFTCAP;
constexpr bool HAS_SINKS = KVPLAN_SINKS;
#ifdef KVPLAN_SLOPES
constexpr bool HAS_SLOPES = true;
#else
constexpr bool HAS_SLOPES = false;
#endif
#ifdef KVPLAN_VALUE_SIZE
constexpr int VALUE_SIZE = KVPLAN_VALUE_SIZE;
#else
constexpr int VALUE_SIZE = HEAD_SIZE;
#endif
#ifdef KVPLAN_VALUES_IN_KEYS
constexpr bool VALUES_IN_KEYS = true;  // a value is the beginning of its key: latent attention
#else
constexpr bool VALUES_IN_KEYS = false;
#endif
constexpr int VALUE_STRIDE = VALUES_IN_KEYS ? HEAD_SIZE : VALUE_SIZE;  // from one token's value to the next one's
#ifdef KVPLAN_VALUE_TABLES
constexpr bool HAS_VALUE_TABLES = true;  // values lie in other blocks than the keys
#else
constexpr bool HAS_VALUE_TABLES = false;
#endif

constexpr bool HAS_SCALES = IS_SCALED<Cache>;

static_assert(HEAD_SIZE % 16 == 0 && VALUE_SIZE % 16 == 0 && BLOCK_SIZE >= 1 && GROUP >= 1);

// One piece of decode work: some tokens of one sequence. Items of a sequence lie side by side. What a block must know
// of its sequence stands here too: every load that its first load of K waits for makes a short step longer.
struct alignas(16) DecodeItem {
    int sequence;     // -1: nothing to do
    int first_token;  // a multiple of 16
    int last_token;   // exclusive
    int first_item;   // the sequence's first item
    int num_items;    // how many items the sequence has
    int query_token;  // the sequence's row of the queries
    int length;       // its tokens in the cache, this step's included
    int num_shared;   // how many of these, the first ones, another kernel has done: a prefix that several sequences share
};

// One piece of prefill work: a tile of one sequence's (token, head of the group) rows, and the tokens that its rows see, or
// a part of these. Parts of a tile lie side by side; each begins and ends at a multiple of 64 tokens, but for what the tile
// itself begins and ends with, so that no tile of KV belongs to two. Where tiles stay whole (PrefillLaunch.target_items
// is 0 in Python) num_parts is 1, and first_token and last_token are what follows from the tile.
struct alignas(16) PrefillItem {
    int sequence;     // -1: nothing to do; of a shared prefix the place of its first sequence in `members`
    int tile;         // its rows begin at tile x (rows of a tile)
    int first_token;  // first position that this item sees
    int last_token;   // exclusive; its last row sees all of these
    int part;         // number of this part of the tile
    int num_parts;    // 1: the tile is whole
    int first_slot;   // of the scratch memory: part i of the tile has slot first_slot + i. Not set for a whole tile
    int first_position;  // of the tile's first row; of a shared prefix the number of its sequences
};

struct AttentionParams {
    // [num_tokens, num_query_heads, head_size]  Scalar, rows query_stride elements apart
    const void* query;
    // [num_blocks, block_stride]  Cache; already moved to the layer: K of head 0 lies first, V value_offset further
    const void* kv;
    // [num_sequences, table_stride]  block numbers
    const int* block_tables;
    // the same of the values; block_tables again where they lie in the keys' blocks
    const int* value_tables;
    // [num_sequences]  tokens in the cache, this step's included
    const int* seq_lens;
    // [num_sequences + 1]  first query token of each sequence
    const int* query_starts;
    // [num_items]  DecodeItem or PrefillItem
    const void* items;
    // [num_query_heads]  float32 logits of a token without a value; null without sinks
    const float* sinks;
    // [num_query_heads]  float32: times a key's distance, added to its logit (ALiBi); null without slopes
    const float* slopes;
    // [num_items, num_query_heads, VALUE_SIZE]  float32: sums of unfinished items of decode. Of prefill what the threads
    // of a block hold, [slots, grid y, PART_FLOATS] (prefill_parts.cuh)
    float* partial_sums;
    // [num_items, num_query_heads, 2]  float32, decode only: largest logit (times log2 e), sum of exponentials
    float* partial_stats;
    // [num_sequences, grid y]  int32: items of decode that are finished; of prefill [slots, grid y], see prefill_parts.cuh.
    // Zero between launches
    int* finished;
    // [num_sequences]  each one's first item of decode; only where a shared prefix is attended to
    const int* first_items;
    // [num_sequences]  sequences, those that share a prefix side by side; only where it is attended to
    const int* members;
    // [num_tokens, num_query_heads, VALUE_SIZE]  Scalar, rows out_stride elements apart. Of a shared prefix decode's
    // partial_sums (prefill_shared.cuh)
    void* out;
    i64 block_stride;  // elements from one block to the next
    i64 value_offset;  // elements from K to V; 0 where values are the beginnings of keys
    i64 query_stride;
    i64 out_stride;
    int table_stride;
    int num_query_heads;
    int window;  // a query sees the last `window` positions, itself included; 0: all of them
    float scale;
    float softcap;  // logits become softcap * tanh(logit / softcap)
    float key_scale;
    float value_scale;  // stored value times this = value; 1 unless the cache is fp8
};

// What a logit grows by for each position of its key.
KVPLAN_INLINE float slope_of(int head, const AttentionParams& params) {
    if constexpr (HAS_SLOPES) return params.slopes[smaller(head, params.num_query_heads - 1)];
    return 0.0f;
}

// The logit of a key in base 2, so that the softmax needs exp2 only. distance: its position less the query's.
KVPLAN_INLINE float base2_logit(float product, float slope, int distance, const AttentionParams& params) {
    float logit = product * (params.scale * params.key_scale);
    if constexpr (HAS_SOFTCAP) logit = params.softcap * tanhf(logit / params.softcap);
    if constexpr (HAS_SLOPES) logit += slope * float(distance);
    return logit * LOG2_E;
}

// The block tables of the values.
KVPLAN_INLINE const int* value_tables_of(const AttentionParams& params) {
    return HAS_VALUE_TABLES ? params.value_tables : params.block_tables;
}

// The larger of two scores, in one instruction; `maximum`, which lets a NaN through, takes two.
KVPLAN_INLINE float larger_score(float a, float b) { return fmaxf(a, b); }

// The first position that a query at `position` sees.
KVPLAN_INLINE int first_visible(int position, const AttentionParams& params) {
    return params.window > 0 ? larger(0, position - params.window + 1) : 0;
}

// Elements from the start of the layer's K (of the right head) to the token's row.
KVPLAN_INLINE i64 row_offset(int block, int position, const AttentionParams& params) {
    return i64(block) * params.block_stride + (position % BLOCK_SIZE) * HEAD_SIZE;
}

// The same of its value.
KVPLAN_INLINE i64 value_row_offset(int block, int position, const AttentionParams& params) {
    return i64(block) * params.block_stride + (position % BLOCK_SIZE) * VALUE_STRIDE;
}

// The layer's keys and values of one KV head, in block 0.
KVPLAN_INLINE const Cache* keys_of(int kv_head, const AttentionParams& params) {
    return static_cast<const Cache*>(params.kv) + i64(kv_head) * BLOCK_SIZE * HEAD_SIZE;
}

KVPLAN_INLINE const Cache* values_of(int kv_head, const AttentionParams& params) {
    return static_cast<const Cache*>(params.kv) + params.value_offset + i64(kv_head) * BLOCK_SIZE * VALUE_STRIDE;
}

// The scales of the keys and values of one KV head in block 0, a float for each of its BLOCK_SIZE tokens, behind the
// integers of the page; blocks are block_stride / 4 floats apart. Null for a cache without scales.
KVPLAN_INLINE const float* scales_of(const Cache* page, int row_elements, int kv_head, const AttentionParams& params) {
    if constexpr (HAS_SCALES) {
        const int num_kv_heads = params.num_query_heads / GROUP;
        const Cache* behind = page + i64(num_kv_heads) * BLOCK_SIZE * row_elements;
        return reinterpret_cast<const float*>(behind) + kv_head * BLOCK_SIZE;
    }
    return nullptr;
}

KVPLAN_INLINE const float* key_scales_of(int kv_head, const AttentionParams& params) {
    return scales_of(static_cast<const Cache*>(params.kv), HEAD_SIZE, kv_head, params);
}

KVPLAN_INLINE const float* value_scales_of(int kv_head, const AttentionParams& params) {
    return scales_of(static_cast<const Cache*>(params.kv) + params.value_offset, VALUE_SIZE, kv_head, params);
}

// What a token's integers are multiplied with; 1 without scales.
KVPLAN_INLINE float scale_at(const float* scales, int block, int position, const AttentionParams& params) {
    if constexpr (HAS_SCALES)
        return scales[block * (params.block_stride / i64(sizeof(float))) + position % BLOCK_SIZE];
    return 1.0f;
}

// e^(x - m) with the largest logit m of nothing at all taken as 0, so that -inf - -inf never appears.
KVPLAN_INLINE float finite_or_zero(float logit) { return logit == minus_infinity() ? 0.0f : logit; }
