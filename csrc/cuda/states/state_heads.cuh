// States of heads: a matrix of VALUE_SIZE rows of KEY_SIZE elements for each head, which all tokens of a sequence change.
//
// A warp has some rows of a head in its registers while the tokens pass, and no warp waits for another. TEAM lanes share a
// row, each with every TEAM-th element of it; what a token brings for a row's elements lies in the lanes in the same way.
#pragma once

#include "state.cuh"

constexpr int KEY_SIZE = KVPLAN_KEY_SIZE;
constexpr int VALUE_SIZE = KVPLAN_VALUE_SIZE;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * WARP_LANES;
constexpr int TEAM = KEY_SIZE <= 64 ? 4 : KEY_SIZE <= 128 ? 8 : KEY_SIZE <= 256 ? 16 : 32;  // lanes
constexpr int TEAMS = WARP_LANES / TEAM;
constexpr int OWN = ceil_divide(KEY_SIZE, TEAM);  // elements of a row in a lane
constexpr int TEAM_ROWS = 2;
constexpr int BLOCK_ROWS = WARPS * TEAMS * TEAM_ROWS;
constexpr int TILES = ceil_divide(VALUE_SIZE, BLOCK_ROWS);  // blocks that share a head

static_assert(KEY_SIZE <= 512);

// Which rows of which head this lane works on.
struct Place {
    int head;
    int rows[TEAM_ROWS];  // of the head; VALUE_SIZE and more: none
    int lane;             // within the team
};

KVPLAN_INLINE Place own_place() {
    const int warp = int(threadIdx.x) / WARP_LANES, lane = int(threadIdx.x) % WARP_LANES;
    Place place;
    place.head = int(blockIdx.y) / TILES;
    place.lane = lane % TEAM;
    KVPLAN_UNROLL
    for (int r = 0; r < TEAM_ROWS; ++r)
        place.rows[r] = int(blockIdx.y) % TILES * BLOCK_ROWS + (r * WARPS + warp) * TEAMS + lane / TEAM;
    return place;
}

struct Vector {
    float elements[OWN];
};

KVPLAN_INLINE bool has_element(int lane, int i) { return KEY_SIZE % TEAM == 0 || i * TEAM + lane < KEY_SIZE; }

template <typename T>
KVPLAN_INLINE Vector load_vector_of(const T* source, int lane) {
    Vector vector;
    KVPLAN_UNROLL
    for (int i = 0; i < OWN; ++i) vector.elements[i] = has_element(lane, i) ? to_float(source[i * TEAM + lane]) : 0.0f;
    return vector;
}

KVPLAN_INLINE float sum_over_team(float value) {
    KVPLAN_UNROLL
    for (int mask = 1; mask < TEAM; mask *= 2) value += __shfl_xor_sync(FULL_WARP, value, mask);
    return value;
}

KVPLAN_INLINE float dot(const Vector& a, const Vector& b) {
    float sum = 0.0f;
    KVPLAN_UNROLL
    for (int i = 0; i < OWN; ++i) sum += a.elements[i] * b.elements[i];
    return sum_over_team(sum);
}

KVPLAN_INLINE void load_state(Vector (&rows)[TEAM_ROWS], const Place& place, const Tokens& tokens,
                              const StatePlace& state) {
    KVPLAN_UNROLL
    for (int r = 0; r < TEAM_ROWS; ++r) {
        rows[r] = Vector{};
        if (tokens.is_new || place.rows[r] >= VALUE_SIZE) continue;
        rows[r] = load_vector_of(state_row(tokens, place.head * VALUE_SIZE + place.rows[r], KEY_SIZE, state), place.lane);
    }
}

KVPLAN_INLINE void store_state(const Vector (&rows)[TEAM_ROWS], const Place& place, const Tokens& tokens,
                               const StatePlace& state) {
    KVPLAN_UNROLL
    for (int r = 0; r < TEAM_ROWS; ++r) {
        if (place.rows[r] >= VALUE_SIZE) continue;
        State* target = state_row(tokens, place.head * VALUE_SIZE + place.rows[r], KEY_SIZE, state);
        KVPLAN_UNROLL
        for (int i = 0; i < OWN; ++i) {
            if (has_element(place.lane, i)) target[i * TEAM + place.lane] = from_float<State>(rows[r].elements[i]);
        }
    }
}
