// Copies a step's inputs from where the host wrote them to where the step's kernels read them: all of them in one launch,
// which reads pinned host memory itself. A captured step can then be replayed, whose addresses never change.
#include "../platform.cuh"

constexpr int THREADS = 256;
constexpr int IN_FLIGHT = 4;  // words that a thread reads before it writes any: each is a way over the bus
constexpr int MOST_INPUTS = 32;

// Rows of words, the same in both places. What has one axis is one row.
struct InputRows {
    // [rows, words]  4-byte words, rows `stride` words apart; pinned host memory
    const u32* source;
    // [rows, words]  the same, on the device
    u32* target;
    i64 stride;
    int rows;
    int words;
};

struct InputParams {
    // [num_inputs]
    InputRows inputs[MOST_INPUTS];
    // [any]  int64: where the first input, int64, has v < 0, its target gets chosen[-1 - v]; null: it has no such values
    const i64* chosen;
};

// The tokens of which the host knows only that the step before chooses them come from there.
KVPLAN_INLINE void copy_tokens(const InputRows& input, const i64* chosen) {
    const i64* source = reinterpret_cast<const i64*>(input.source);
    i64* target = reinterpret_cast<i64*>(input.target);
    for (int i = int(blockIdx.x) * THREADS + int(threadIdx.x); i < input.words / 2; i += int(gridDim.x) * THREADS) {
        const i64 token = source[i];
        target[i] = token < 0 ? chosen[-1 - token] : token;
    }
}

// grid (any, inputs), block THREADS; the blocks of one input share its words.
KVPLAN_KERNEL(copy_inputs, InputParams, THREADS) {
    const InputRows& input = params.inputs[blockIdx.y];
    if (blockIdx.y == 0 && params.chosen != nullptr) {
        copy_tokens(input, params.chosen);
        return;
    }
    const int total = input.rows * input.words, step = int(gridDim.x) * THREADS;
    for (int first = int(blockIdx.x) * THREADS + int(threadIdx.x); first < total; first += step * IN_FLIGHT) {
        u32 words[IN_FLIGHT];
        i64 places[IN_FLIGHT];
        KVPLAN_UNROLL
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const int word = first + i * step;
            places[i] = word / input.words * input.stride + word % input.words;
            if (word < total) words[i] = input.source[places[i]];
        }
        KVPLAN_UNROLL
        for (int i = 0; i < IN_FLIGHT; ++i) {
            if (first + i * step < total) input.target[places[i]] = words[i];
        }
    }
}
