// A causal convolution over the tokens of each sequence, which goes on from the inputs that the last step ended with.
//
// A thread takes one channel through all tokens; the output may overwrite the input, so tokens come in order, RUN at a time.
#include "state.cuh"

constexpr int TAPS = KVPLAN_TAPS;
constexpr bool HAS_SILU = KVPLAN_SILU;
constexpr int THREADS = 128;
constexpr int RUN = 8;  // tokens whose inputs are under way at once

static_assert(TAPS >= 2);

struct ConvolutionParams {
    // rows of `channels` elements: a tap's inputs, oldest first
    StatePlace state;
    // [tokens, channels]  Scalar, rows x_stride elements apart
    const void* x;
    // [tokens, channels]  Scalar, rows out_stride elements apart; may be x
    void* out;
    // [TAPS, channels]  float32, oldest first
    const float* weight;
    // [channels]  float32; null without a bias
    const float* bias;
    i64 x_stride;
    i64 out_stride;
    int channels;
};

// grid (sequences, ceil(channels / THREADS)), block THREADS.
KVPLAN_KERNEL(convolve, ConvolutionParams, THREADS) {
    const int channel = int(blockIdx.y) * THREADS + int(threadIdx.x);
    const Tokens tokens = tokens_of(int(blockIdx.x), params.state);
    if (channel >= params.channels || tokens.begin == tokens.end) return;
    float weight[TAPS], past[TAPS - 1];
    KVPLAN_UNROLL
    for (int tap = 0; tap < TAPS; ++tap) weight[tap] = params.weight[tap * params.channels + channel];
    KVPLAN_UNROLL
    for (int tap = 0; tap < TAPS - 1; ++tap)
        past[tap] = tokens.is_new ? 0.0f : to_float(state_row(tokens, tap, params.channels, params.state)[channel]);
    const float bias = params.bias != nullptr ? params.bias[channel] : 0.0f;
    const Scalar* x = static_cast<const Scalar*>(params.x) + channel;
    Scalar* out = static_cast<Scalar*>(params.out) + channel;
    for (int first = tokens.begin; first < tokens.end; first += RUN) {
        float inputs[RUN];
        KVPLAN_UNROLL
        for (int i = 0; i < RUN; ++i)
            inputs[i] = to_float(x[smaller(first + i, tokens.end - 1) * params.x_stride]);
        KVPLAN_UNROLL
        for (int i = 0; i < RUN; ++i) {
            if (first + i >= tokens.end) break;
            float sum = bias + inputs[i] * weight[TAPS - 1];
            KVPLAN_UNROLL
            for (int tap = 0; tap < TAPS - 1; ++tap) sum += past[tap] * weight[tap];
            out[(first + i) * params.out_stride] = from_float<Scalar>(HAS_SILU ? sum * sigmoid(sum) : sum);
            KVPLAN_UNROLL
            for (int tap = 0; tap < TAPS - 2; ++tap) past[tap] = past[tap + 1];
            past[TAPS - 2] = inputs[i];
        }
    }
    KVPLAN_UNROLL
    for (int tap = 0; tap < TAPS - 1; ++tap)
        state_row(tokens, tap, params.channels, params.state)[channel] = from_float<State>(past[tap]);
}
