// The index of the largest logit of each row: the lowest on ties, and a NaN counts as largest, as torch.argmax has it.
#include "../reduce.cuh"
#include "../sampling/best.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr int THREADS = 1024;
constexpr int COUNT = KVPLAN_VECTORS ? Pack<Scalar>::SIZE : 1;
using Part = Elements<Scalar, COUNT>;

struct ArgmaxParams {
    // [rows, width]  Scalar, rows `stride` elements apart
    const void* logits;
    // [rows]  int64
    i64* out;
    i64 stride;
    int width;
};

// grid (rows), block THREADS.
KVPLAN_KERNEL(argmax_rows, ArgmaxParams, THREADS) {
    const Scalar* row = static_cast<const Scalar*>(params.logits) + i64(blockIdx.x) * params.stride;
    Best best = no_best();
    const int whole = params.width / COUNT * COUNT;
    for (int start = int(threadIdx.x) * COUNT; start < whole; start += THREADS * COUNT) {
        const Part part = Part::load(row + start);
        KVPLAN_UNROLL
        for (int i = 0; i < COUNT; ++i) {
            const Best candidate = {part.values[i], start + i};
            if (wins(candidate, best)) best = candidate;
        }
    }
    if (whole + int(threadIdx.x) < params.width) {
        const Best candidate = {to_float(row[whole + int(threadIdx.x)]), whole + int(threadIdx.x)};
        if (wins(candidate, best)) best = candidate;
    }
    best = best_of_block<THREADS>(best);
    if (threadIdx.x == 0) params.out[blockIdx.x] = best.index;
}
