// Mamba's recurrence, token after token: a thread for each channel, whose row of the state it keeps in registers.
//
//     step = softplus(steps + bias)     h[n] = exp(step decay[n]) h[n] + step x B[n]     y = h . C + skip x
#include "state.cuh"

constexpr int SIZE = KVPLAN_SIZE;  // elements of a row
constexpr int THREADS = 128;

struct Mamba1Params {
    // channels rows of SIZE
    StatePlace state;
    // [tokens, channels]  Scalar
    const void* x;
    const void* steps;
    // [tokens, SIZE]  Scalar
    const void* b;
    const void* c;
    // [tokens, channels]  Scalar; may be x
    void* out;
    // [channels, SIZE]  float32
    const float* decay;
    // [channels]  float32, each
    const float* skip;
    const float* step_bias;
    i64 x_stride;  // elements between two tokens
    i64 steps_stride;
    i64 b_stride;
    i64 c_stride;
    i64 out_stride;
    int channels;
};

// grid (sequences, ceil(channels / THREADS)), block THREADS.
KVPLAN_KERNEL(scan_mamba1, Mamba1Params, THREADS) {
    const int channel = int(blockIdx.y) * THREADS + int(threadIdx.x);
    const Tokens tokens = tokens_of(int(blockIdx.x), params.state);
    if (channel >= params.channels || tokens.begin == tokens.end) return;
    State* row = state_row(tokens, channel, SIZE, params.state);
    float state[SIZE], decay[SIZE];
    KVPLAN_UNROLL
    for (int n = 0; n < SIZE; ++n) {
        state[n] = tokens.is_new ? 0.0f : to_float(row[n]);
        decay[n] = params.decay[i64(channel) * SIZE + n] * LOG2_E;
    }
    const float skip = params.skip[channel], bias = params.step_bias[channel];
    for (int token = tokens.begin; token < tokens.end; ++token) {
        const float x = to_float(static_cast<const Scalar*>(params.x)[token * params.x_stride + channel]);
        const float raw = to_float(static_cast<const Scalar*>(params.steps)[token * params.steps_stride + channel]);
        const float step = softplus(raw + bias), added = step * x;
        const Scalar* b = static_cast<const Scalar*>(params.b) + token * params.b_stride;
        const Scalar* c = static_cast<const Scalar*>(params.c) + token * params.c_stride;
        float result = skip * x;
        KVPLAN_UNROLL
        for (int n = 0; n < SIZE; ++n) {
            state[n] = fast_exp2(step * decay[n]) * state[n] + added * to_float(b[n]);
            result += state[n] * to_float(c[n]);
        }
        static_cast<Scalar*>(params.out)[token * params.out_stride + channel] = from_float<Scalar>(result);
    }
    KVPLAN_UNROLL
    for (int n = 0; n < SIZE; ++n) row[n] = from_float<State>(state[n]);
}
