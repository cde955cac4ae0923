// RMSNorm and LayerNorm of rows, with the residual added on the way where there is one.
//
// One block per row; the row stays in registers between the passes, so memory is read once and written once.
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int WIDTH = KVPLAN_WIDTH;
constexpr int THREADS = KVPLAN_THREADS;
constexpr bool HAS_DELTA = KVPLAN_DELTA;
// Elements per access: a vector where every row starts at a multiple of 16 bytes.
constexpr int COUNT = KVPLAN_VECTORS ? Pack<Scalar>::SIZE : 1;
constexpr int PARTS = ceil_divide(WIDTH, THREADS * COUNT);
using Part = Elements<Scalar, COUNT>;

static_assert(WIDTH % COUNT == 0);

// A row is one token's hidden state, or one head of a token: the heads of a token lie side by side.
struct NormParams {
    // [tokens, heads, WIDTH]  Scalar, added to x first; null without a residual
    const void* delta;
    // [tokens, heads, WIDTH]  Scalar; with delta the residual, written back as x + delta
    void* x;
    // [WIDTH]  Scalar
    const void* weight;
    // [WIDTH]  Scalar, LayerNorm only
    const void* bias;
    // [tokens, heads, WIDTH]  Scalar; may be x, or delta
    void* out;
    i64 delta_stride;
    i64 x_stride;
    i64 out_stride;
    float epsilon;
};

// Elements from a tensor's start to this block's row; `stride` lies between tokens.
KVPLAN_INLINE i64 row_start(i64 stride) { return i64(blockIdx.x) * stride + i64(blockIdx.y) * WIDTH; }

KVPLAN_INLINE int part_start(int part) { return (part * THREADS + int(threadIdx.x)) * COUNT; }

KVPLAN_INLINE bool has_part(int part) { return WIDTH % (THREADS * COUNT) == 0 || part_start(part) < WIDTH; }

// The row, with delta added and the sum written back: rounded, as whoever reads the residual next will see it.
KVPLAN_INLINE void load_row(Part (&row)[PARTS], const NormParams& params) {
    Scalar* x = static_cast<Scalar*>(params.x) + row_start(params.x_stride);
    const Scalar* delta = static_cast<const Scalar*>(params.delta) + row_start(params.delta_stride);
    KVPLAN_UNROLL
    for (int p = 0; p < PARTS; ++p) {
        row[p] = Part{};
        if (!has_part(p)) continue;
        row[p] = Part::load(x + part_start(p));
        if constexpr (HAS_DELTA) {
            const Part added = Part::load(delta + part_start(p));
            KVPLAN_UNROLL
            for (int i = 0; i < COUNT; ++i)
                row[p].values[i] = to_float(from_float<Scalar>(row[p].values[i] + added.values[i]));
        }
    }
    if constexpr (HAS_DELTA) {  // when all loads are under way
        KVPLAN_UNROLL
        for (int p = 0; p < PARTS; ++p) {
            if (has_part(p)) Part::store(x + part_start(p), row[p]);
        }
    }
}

// out = (row - mean) * scale * weight + bias
KVPLAN_INLINE void store_row(const Part (&row)[PARTS], float mean, float scale, bool has_bias,
                             const NormParams& params) {
    Scalar* out = static_cast<Scalar*>(params.out) + row_start(params.out_stride);
    KVPLAN_UNROLL
    for (int p = 0; p < PARTS; ++p) {
        if (!has_part(p)) continue;
        const Part weight = Part::load(static_cast<const Scalar*>(params.weight) + part_start(p));
        Part bias = {}, result;
        if (has_bias) bias = Part::load(static_cast<const Scalar*>(params.bias) + part_start(p));
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i)
            result.values[i] = (row[p].values[i] - mean) * scale * weight.values[i] + bias.values[i];
        Part::store(out + part_start(p), result);
    }
}

// The sum of (row - mean)^2 over the block.
KVPLAN_INLINE float sum_of_squares(const Part (&row)[PARTS], float mean) {
    float squares = 0.0f;
    KVPLAN_UNROLL
    for (int p = 0; p < PARTS; ++p) {
        if (!has_part(p)) continue;
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i) squares += (row[p].values[i] - mean) * (row[p].values[i] - mean);
    }
    return sum_over_block<THREADS>(squares);
}

// grid (tokens, heads), block THREADS.
KVPLAN_KERNEL(rms_norm, NormParams, THREADS) {
    Part row[PARTS];
    load_row(row, params);
    const float mean_square = sum_of_squares(row, 0.0f) / WIDTH;
    store_row(row, 0.0f, 1.0f / sqrtf(mean_square + params.epsilon), false, params);
}

// grid (tokens, heads), block THREADS.
KVPLAN_KERNEL(layer_norm, NormParams, THREADS) {
    Part row[PARTS];
    load_row(row, params);
    float sum = 0.0f;
    KVPLAN_UNROLL
    for (int p = 0; p < PARTS; ++p) {
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i) sum += row[p].values[i];
    }
    const float mean = sum_over_block<THREADS>(sum) / WIDTH;
    const float variance = sum_of_squares(row, mean) / WIDTH;
    store_row(row, mean, 1.0f / sqrtf(variance + params.epsilon), true, params);
}
