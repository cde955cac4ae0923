// Mamba 2's recurrence, token after token: a row of the state for each element of a head's input.
//
//     step = softplus(steps + bias), within limits     h = exp(step decay) h + step x B     y = h . C + skip x
#include "state_heads.cuh"

struct Mamba2Params {
    // heads * VALUE_SIZE rows of KEY_SIZE
    StatePlace state;
    // [tokens, heads * VALUE_SIZE]  Scalar
    const void* x;
    // [tokens, heads]  Scalar
    const void* steps;
    // [tokens, groups * KEY_SIZE]  Scalar
    const void* b;
    const void* c;
    // [tokens, heads * VALUE_SIZE]  Scalar; may be x
    void* out;
    // [heads]  float32, each
    const float* decay;
    const float* skip;
    const float* step_bias;
    i64 x_stride;  // elements between two tokens
    i64 steps_stride;
    i64 b_stride;
    i64 c_stride;
    i64 out_stride;
    int heads;
    int groups;
    float least_step;
    float most_step;
};

// grid (sequences, heads * TILES), block THREADS.
KVPLAN_KERNEL(scan_mamba2, Mamba2Params, THREADS) {
    const Tokens tokens = tokens_of(int(blockIdx.x), params.state);
    if (tokens.begin == tokens.end) return;
    const Place place = own_place();
    const int head = place.head, group = head * params.groups / params.heads * KEY_SIZE;
    const float decay_rate = params.decay[head], skip = params.skip[head], bias = params.step_bias[head];
    Vector state[TEAM_ROWS];
    load_state(state, place, tokens, params.state);
    for (int row = tokens.begin; row < tokens.end; ++row) {
        const Vector b = load_vector_of(static_cast<const Scalar*>(params.b) + row * params.b_stride + group, place.lane);
        const Vector c = load_vector_of(static_cast<const Scalar*>(params.c) + row * params.c_stride + group, place.lane);
        const Scalar* x = static_cast<const Scalar*>(params.x) + row * params.x_stride;
        Scalar* out = static_cast<Scalar*>(params.out) + row * params.out_stride;
        float step = softplus(to_float(static_cast<const Scalar*>(params.steps)[row * params.steps_stride + head]) + bias);
        step = smaller(larger(step, params.least_step), params.most_step);
        const float decay = expf(step * decay_rate);
        KVPLAN_UNROLL
        for (int r = 0; r < TEAM_ROWS; ++r) {
            const bool exists = place.rows[r] < VALUE_SIZE;
            const int column = head * VALUE_SIZE + place.rows[r];
            const float input = exists ? to_float(x[column]) : 0.0f;
            KVPLAN_UNROLL
            for (int i = 0; i < OWN; ++i)
                state[r].elements[i] = state[r].elements[i] * decay + step * input * b.elements[i];
            const float result = dot(state[r], c) + skip * input;
            if (exists && place.lane == 0) out[column] = from_float<Scalar>(result);
        }
    }
    store_state(state, place, tokens, params.state);
}
