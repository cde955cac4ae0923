// A token for each sequence from a row of logits: the likeliest, or drawn at random after temperature, min-p, top-k and
// top-p. Everything that a sequence asks for is read from memory, so a captured graph follows it.
//
// A draw is a race: each token waits for an exponential time with its probability as the rate, and the first one wins.
// So a row needs no sum of probabilities, and logits that differ in their last bits practically never change the winner.
// What a token waits is a function of (key, position, token) alone.
//
// Tokens without any probability are never drawn: those excluded, those at minus infinity, and those that no random
// number could make the first. Rows that cannot be drawn from, with a NaN or with minus infinity everywhere, give their
// likeliest token, a NaN's place being that; of several at plus infinity one is drawn.
#include "best.cuh"
#include "philox.cuh"
#include "threshold.cuh"

constexpr int THREADS = KVPLAN_THREADS;
// The longest wait is 2^4.06, the shortest 2^-33: a token farther behind the likeliest cannot win. See log2_of_waiting.
constexpr float REACH = 38.0f;

struct SampleParams {
    // [logits' rows, width]  Scalar, rows `stride` elements apart
    const void* logits;
    // [rows]
    const DrawRow* draws;
    // [rows of counts, counts_stride]  see IN_PROMPT; counts the tokens that are chosen here
    u16* counts;
    // [tokens]  the position of each token of the step in its sequence
    const i64* positions;
    // [logits' rows]  which of the step's tokens each row of logits follows; null: row i follows token i
    const i64* token_rows;
    // [rows]  which row of logits each token is chosen from; null: row i from row i
    const i64* logits_rows;
    // [rows]  the tokens
    i64* out;
    // [rows]  how far from the likeliest token (log2 of probability) drawn tokens may lie; null: not wanted
    float* limits;
    i64 stride;
    i64 counts_stride;
    int width;
};

KVPLAN_INLINE Row row_of(const SampleParams& params, u16* counts) {
    const i64 source = params.logits_rows == nullptr ? i64(blockIdx.x) : params.logits_rows[blockIdx.x];
    const i64 token = params.token_rows == nullptr ? source : params.token_rows[source];
    const Scalar* logits = static_cast<const Scalar*>(params.logits) + source * params.stride;
    return {logits, counts, params.draws + blockIdx.x, int(params.positions[token]), params.width};
}

KVPLAN_INLINE Best likeliest(const Row& row) {
    Best best = no_best();
    for (int start = int(threadIdx.x) * UNIT; start < row.width; start += THREADS * UNIT) {
        const Unit unit = load_unit(row, start);
        KVPLAN_UNROLL
        for (int i = 0; i < UNIT; ++i) {
            const Best candidate = {unit.values[i], start + i};
            if (wins(candidate, best)) best = candidate;
        }
    }
    return best_of_block<THREADS>(best);
}

// min-p, then top-k, then top-p as a share of what these leave.
KVPLAN_INLINE float limit_of(const Row& row, float most) {
    float limit = row.asked->max_distance;
    if (row.asked->top_k > 0) limit = nearest<false, THREADS>(row, most, limit, double(row.asked->top_k));
    if (row.asked->top_p < 1.0) limit = nearest<true, THREADS>(row, most, limit, row.asked->top_p);
    return limit;
}

KVPLAN_INLINE void race(Best& first, const float* distances, int start, float limit, u64 key, int position) {
    bool runs = false;
    KVPLAN_UNROLL
    for (int i = 0; i < PHILOX_WORDS; ++i) runs = runs || distances[i] <= limit;
    if (!runs) return;
    const RandomWords random = philox(key, u32(start) / PHILOX_WORDS, u32(position));
    KVPLAN_UNROLL
    for (int i = 0; i < PHILOX_WORDS; ++i) {
        const Best candidate = {-distances[i] - log2_of_waiting(random.words[i]), start + i};
        if (distances[i] <= limit && wins(candidate, first)) first = candidate;
    }
}

KVPLAN_INLINE int drawn(const Row& row, float most, float limit) {
    Best first = no_best();
    const float scale = row.asked->scale, reach = smaller(limit, REACH);
    for (int start = int(threadIdx.x) * UNIT; start < row.width; start += THREADS * UNIT) {
        const Unit unit = load_unit(row, start);
        float distances[UNIT];
        KVPLAN_UNROLL
        for (int i = 0; i < UNIT; ++i) distances[i] = distance_of(unit.values[i], most, scale);
        KVPLAN_UNROLL
        for (int i = 0; i < UNIT; i += PHILOX_WORDS) {
            race(first, distances + i, start + i, reach, row.asked->key, row.position);
        }
    }
    return best_of_block<THREADS>(first).index;
}

// grid (rows), block THREADS.
KVPLAN_KERNEL(sample_rows, SampleParams, THREADS) {
    const int counts_row = params.draws[blockIdx.x].counts_row;
    u16* counts = counts_row > 0 ? params.counts + (counts_row - 1) * params.counts_stride : nullptr;
    const Row row = row_of(params, counts);
    const Best best = likeliest(row);
    int token = best.index;
    if (row.asked->scale > 0.0f && best.value > minus_infinity()) {
        const float limit = limit_of(row, best.value);
        if (params.limits != nullptr && threadIdx.x == 0) params.limits[blockIdx.x] = limit;
        token = drawn(row, best.value, limit);
    }
    if (threadIdx.x != 0) return;
    params.out[blockIdx.x] = token;
    if (counts != nullptr && (counts[token] & MOST_TIMES) < MOST_TIMES) ++counts[token];
}
