// Which experts each row takes, and with which weights: a warp for each row, scores in float32.
#include "../reduce.cuh"

enum class Scoring { softmax, sigmoid, softmax_of_top, sqrt_softplus, sparse_mixer };

using Scalar = KVPLAN_SCALAR;
constexpr int EXPERTS = KVPLAN_EXPERTS;
constexpr int TOP_K = KVPLAN_TOP_K;
constexpr Scoring SCORING = Scoring::KVPLAN_SCORING;
constexpr int GROUPS = KVPLAN_GROUPS;          // experts lie group by group
constexpr int TOP_GROUPS = KVPLAN_TOP_GROUPS;  // a row chooses from so many of them
constexpr bool ADDS_TWO = KVPLAN_ADDS_TWO;     // a group's score is the sum of its best two, else its best
constexpr bool IS_NORMALISED = KVPLAN_NORMALISED;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;

static_assert(EXPERTS % GROUPS == 0 && GROUPS <= WARP_LANES && TOP_K <= WARP_LANES && TOP_K <= EXPERTS);

struct RouteParams {
    // [rows, EXPERTS]  float32
    const float* logits;
    // [EXPERTS]  Scalar, added for the choice alone; null without one
    const void* correction;
    // [rows, hidden]  Scalar, rows x_stride elements apart; read for the shared expert's gate
    const void* x;
    // [hidden]  Scalar; null: the shared expert's weight is 1
    const void* shared_gate;
    // [rows, TOP_K]  counted from first_expert; -1: an expert whose weights are not here
    int* ids;
    // [rows, TOP_K]
    float* shares;
    // [rows]
    float* shared_shares;
    // [1]  rows that are a sequence's token, which come first: those behind them choose nothing; null: all rows
    const int* num_filled;
    i64 x_stride;
    int rows;
    int hidden;
    int first_expert;  // of those whose weights are here
    int held_experts;
    float scale;
    float jitter;  // of sparse_mixer
};

KVPLAN_INLINE float sum_over_warp(float value) {
    for (int mask = 1; mask < WARP_LANES; mask *= 2) value += __shfl_xor_sync(FULL_WARP, value, mask);
    return value;
}

struct Best {
    float value;
    int expert;
};

// The largest of values[EXPERTS], the first of several; always the number of an expert, even where nothing can be compared.
KVPLAN_INLINE Best best_of(const float* values, int lane) {
    Best best = {minus_infinity(), smaller(lane, EXPERTS - 1)};
    for (int e = lane; e < EXPERTS; e += WARP_LANES) {
        if (values[e] > best.value) best = {values[e], e};
    }
    for (int mask = 1; mask < WARP_LANES; mask *= 2) {
        const Best other = {__shfl_xor_sync(FULL_WARP, best.value, mask), __shfl_xor_sync(FULL_WARP, best.expert, mask)};
        if (other.value > best.value || (other.value == best.value && other.expert < best.expert)) best = other;
    }
    return best;
}

KVPLAN_INLINE float score_of(float logit) {
    if constexpr (SCORING == Scoring::sigmoid) return 1.0f / (1.0f + expf(-logit));
    if constexpr (SCORING == Scoring::sqrt_softplus) return sqrtf(logit > 20.0f ? logit : log1pf(expf(logit)));
    return logit;
}

// Logits become scores, in place.
KVPLAN_INLINE void score_row(float* scores, int lane) {
    for (int e = lane; e < EXPERTS; e += WARP_LANES) scores[e] = score_of(scores[e]);
    __syncwarp();
    if constexpr (SCORING == Scoring::softmax) {
        const float largest = best_of(scores, lane).value;
        float total = 0.0f;
        for (int e = lane; e < EXPERTS; e += WARP_LANES) total += expf(scores[e] - largest);
        total = sum_over_warp(total);
        for (int e = lane; e < EXPERTS; e += WARP_LANES) scores[e] = expf(scores[e] - largest) / total;
        __syncwarp();
    }
}

// Group number `group`'s score by what decides the choice.
KVPLAN_INLINE float group_score(const float* choice, int group) {
    float most = minus_infinity(), second = minus_infinity();
    for (int e = group * (EXPERTS / GROUPS); e < (group + 1) * (EXPERTS / GROUPS); ++e) {
        second = larger(second, smaller(most, choice[e]));
        most = larger(most, choice[e]);
    }
    return ADDS_TWO && EXPERTS / GROUPS > 1 ? most + second : most;
}

// Minus infinity outside of the best groups; a lane for each group.
KVPLAN_INLINE void keep_best_groups(float* choice, int lane) {
    const float own = lane < GROUPS ? group_score(choice, lane) : minus_infinity();
    int better = 0;
    for (int g = 0; g < GROUPS; ++g) {
        const float other = __shfl_sync(FULL_WARP, own, g);
        better += other > own || (other == own && g < lane);
    }
    __syncwarp();
    if (lane < GROUPS && better >= TOP_GROUPS) {
        for (int e = lane * (EXPERTS / GROUPS); e < (lane + 1) * (EXPERTS / GROUPS); ++e) choice[e] = minus_infinity();
    }
    __syncwarp();
}

// The share of the best of what is `left`, among those close to it: Phi-MoE's sparse_mixer.
KVPLAN_INLINE float share_of_close(const float* left, const float* logits, float most, float jitter, int lane) {
    float total = 0.0f;
    for (int e = lane; e < EXPERTS; e += WARP_LANES) {
        const float distance = (most - logits[e]) / larger(fabsf(logits[e]), most);
        if (!(distance > 2.0f * jitter)) total += expf(left[e] - most);
    }
    return 1.0f / sum_over_warp(total);
}

// One of the row's choices, in the lane of its place.
struct Choice {
    int expert;
    float share;
};

// The row's experts, best first, and their weights before anything is done to all of them. `choice` is used up.
KVPLAN_INLINE Choice choose(float* choice, const float* scores, int lane, const RouteParams& params) {
    Choice own = {0, 0.0f};
    for (int k = 0; k < TOP_K; ++k) {
        const Best best = best_of(choice, lane);
        float share = scores[best.expert];
        if constexpr (SCORING == Scoring::sparse_mixer)
            share = share_of_close(choice, scores, best.value, params.jitter, lane);
        if (lane == k) own = {best.expert, share};
        __syncwarp();
        if (lane == 0) choice[best.expert] = minus_infinity();
        __syncwarp();
    }
    return own;
}

// The weight of this lane's choice beside those of the others.
KVPLAN_INLINE float weigh(float share, int lane, float scale) {
    if constexpr (SCORING == Scoring::softmax_of_top) {
        const float power = expf(share - __shfl_sync(FULL_WARP, share, 0));
        share = power / sum_over_warp(lane < TOP_K ? power : 0.0f);
    }
    if constexpr (IS_NORMALISED) share /= sum_over_warp(lane < TOP_K ? share : 0.0f) + 1e-20f;
    return share * scale;
}

KVPLAN_INLINE float shared_share(int row, int lane, const RouteParams& params) {
    if (params.shared_gate == nullptr) return 1.0f;
    const Scalar* x = static_cast<const Scalar*>(params.x) + row * params.x_stride;
    float product = 0.0f;
    for (int i = lane; i < params.hidden; i += WARP_LANES)
        product += to_float(x[i]) * to_float(static_cast<const Scalar*>(params.shared_gate)[i]);
    return 1.0f / (1.0f + expf(-sum_over_warp(product)));
}

// A row that pads a captured step: no expert is read for it.
KVPLAN_INLINE void choose_nothing(int row, int lane, const RouteParams& params) {
    if (lane == 0) params.shared_shares[row] = 0.0f;
    if (lane >= TOP_K) return;
    params.ids[i64(row) * TOP_K + lane] = -1;
    params.shares[i64(row) * TOP_K + lane] = 0.0f;
}

// grid (ceil(rows / WARPS)), block THREADS.
KVPLAN_KERNEL(choose_experts, RouteParams, THREADS) {
    __shared__ float all_scores[WARPS][EXPERTS], all_choices[WARPS][EXPERTS];
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    const int row = int(blockIdx.x) * WARPS + warp;
    if (row >= params.rows) return;
    if (params.num_filled != nullptr && row >= *params.num_filled) {
        choose_nothing(row, lane, params);
        return;
    }
    float *scores = all_scores[warp], *choice = all_choices[warp];
    for (int e = lane; e < EXPERTS; e += WARP_LANES) scores[e] = params.logits[i64(row) * EXPERTS + e];
    __syncwarp();
    score_row(scores, lane);
    const Scalar* correction = static_cast<const Scalar*>(params.correction);
    for (int e = lane; e < EXPERTS; e += WARP_LANES)
        choice[e] = scores[e] + (correction != nullptr ? to_float(correction[e]) : 0.0f);
    __syncwarp();
    if constexpr (GROUPS > 1) keep_best_groups(choice, lane);
    const Choice own = choose(choice, scores, lane, params);
    const float share = weigh(own.share, lane, params.scale), shared = shared_share(row, lane, params);
    if (lane == 0) params.shared_shares[row] = shared;
    if (lane < TOP_K) {
        const int place = own.expert - params.first_expert;
        params.ids[i64(row) * TOP_K + lane] = place >= 0 && place < params.held_experts ? place : -1;
        params.shares[i64(row) * TOP_K + lane] = share;
    }
}
