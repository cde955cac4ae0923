// The gated delta rule, token after token; linear attention where tokens have no strength.
//
//     S' = S * decay     d = (v - S' k) * strength     S = S' + d k^T     out = S q = S' q + d (k . q)
#include "state_heads.cuh"

constexpr bool HAS_STRENGTH = KVPLAN_STRENGTH;  // keys and queries are normalised then
constexpr bool HAS_DECAY = KVPLAN_DECAY;        // tokens say how much; otherwise decays are fixed
constexpr bool HAS_ELEMENT_DECAYS = KVPLAN_ELEMENT_DECAYS;
constexpr float LEAST_SQUARE = 1e-6f;

struct DeltaParams {
    // heads * VALUE_SIZE rows of KEY_SIZE
    StatePlace state;
    // [tokens, key_heads * KEY_SIZE]  Scalar
    const void* query;
    const void* key;
    // [tokens, heads * VALUE_SIZE]  Scalar
    const void* value;
    // the same; may be value
    void* out;
    // [tokens, heads], or [tokens, heads * KEY_SIZE]  Scalar; not read where decays are fixed
    const void* decay;
    // [tokens, heads]  Scalar; not read without strengths
    const void* strength;
    // [heads]  float32
    const float* rate;
    // [heads], or [heads * KEY_SIZE]  float32
    const float* decay_bias;
    i64 query_stride;  // elements between two tokens
    i64 key_stride;
    i64 value_stride;
    i64 out_stride;
    i64 decay_stride;
    i64 strength_stride;
    int heads;
    int key_heads;
    float scale;
    float strength_scale;
};

// What a token brings for all rows of a head.
struct Token {
    Vector query, key, decay;
    float strength;
    float key_query;
};

KVPLAN_INLINE void read_decays(Token& token, int row, int head, int lane, const DeltaParams& params) {
    const float rate = params.rate[head];
    const Scalar* source = static_cast<const Scalar*>(params.decay) + row * params.decay_stride;
    if constexpr (HAS_ELEMENT_DECAYS) {
        const Vector grown = load_vector_of(source + head * KEY_SIZE, lane);
        const Vector bias = load_vector_of(params.decay_bias + head * KEY_SIZE, lane);
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i)
            token.decay.elements[i] = expf(-rate * softplus(grown.elements[i] + bias.elements[i]));
    } else {
        float decay = -rate;
        if constexpr (HAS_DECAY) decay *= softplus(to_float(source[head]) + params.decay_bias[head]);
        decay = expf(decay);
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) token.decay.elements[i] = decay;
    }
}

KVPLAN_INLINE void scale_by(Vector& vector, float factor) {
    KVPLAN_UNROLL
    for (int i = 0; i < OWN; ++i) vector.elements[i] *= factor;
}

KVPLAN_INLINE Token read_token(int row, int head, int lane, const DeltaParams& params) {
    Token token;
    const int first = head * params.key_heads / params.heads * KEY_SIZE;
    token.query = load_vector_of(static_cast<const Scalar*>(params.query) + row * params.query_stride + first, lane);
    token.key = load_vector_of(static_cast<const Scalar*>(params.key) + row * params.key_stride + first, lane);
    float query_scale = params.scale;
    if constexpr (HAS_STRENGTH) {
        query_scale /= sqrtf(dot(token.query, token.query) + LEAST_SQUARE);
        scale_by(token.key, 1.0f / sqrtf(dot(token.key, token.key) + LEAST_SQUARE));
        const Scalar* strengths = static_cast<const Scalar*>(params.strength) + row * params.strength_stride;
        token.strength = params.strength_scale * sigmoid(to_float(strengths[head]));
    }
    scale_by(token.query, query_scale);
    token.key_query = dot(token.key, token.query);
    read_decays(token, row, head, lane, params);
    return token;
}

// One row of the state goes on by a token; its output.
KVPLAN_INLINE float step_row(Vector& state, float value, const Token& token) {
    KVPLAN_UNROLL
    for (int i = 0; i < OWN; ++i) state.elements[i] *= token.decay.elements[i];
    const float of_query = dot(state, token.query);
    if constexpr (HAS_STRENGTH) value = (value - dot(state, token.key)) * token.strength;
    KVPLAN_UNROLL
    for (int i = 0; i < OWN; ++i) state.elements[i] += value * token.key.elements[i];
    return of_query + value * token.key_query;
}

// grid (sequences, heads * TILES), block THREADS.
KVPLAN_KERNEL(delta_rule, DeltaParams, THREADS) {
    const Tokens tokens = tokens_of(int(blockIdx.x), params.state);
    if (tokens.begin == tokens.end) return;
    const Place place = own_place();
    Vector state[TEAM_ROWS];
    load_state(state, place, tokens, params.state);
    for (int row = tokens.begin; row < tokens.end; ++row) {
        const Scalar* values = static_cast<const Scalar*>(params.value) + row * params.value_stride;
        Scalar* out = static_cast<Scalar*>(params.out) + row * params.out_stride;
        const Token token = read_token(row, place.head, place.lane, params);
        KVPLAN_UNROLL
        for (int r = 0; r < TEAM_ROWS; ++r) {
            const bool exists = place.rows[r] < VALUE_SIZE;
            const int column = place.head * VALUE_SIZE + place.rows[r];
            const float result = step_row(state[r], exists ? to_float(values[column]) : 0.0f, token);
            if (exists && place.lane == 0) out[column] = from_float<Scalar>(result);
        }
    }
    store_state(state, place, tokens, params.state);
}
