// One row of logits as its sequence wants it: with penalties and biases, four or eight tokens at a time.
#pragma once

#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
constexpr bool VECTORS = KVPLAN_VECTORS;  // rows begin at multiples of 16 bytes
constexpr int UNIT = larger(VECTORS ? Pack<Scalar>::SIZE : 1, 4);

// A token whose logit is changed by an amount: `early` before the position where the answer is long enough to end.
struct Listed {
    int token;
    float early;  // minus infinity excludes the token
    float late;
};

// How one sequence's token is chosen. All zeros: it is the likeliest, and nothing else is wanted.
struct DrawRow {
    u64 key;  // of its random numbers
    // [num_listed], by ascending token
    const Listed* listed;
    double top_p;  // 1: all
    int num_listed;
    int early_until;     // the first position at which Listed::late holds
    int counts_row;      // 1 + the sequence's row of `counts`; 0: it has none
    int top_k;           // 0: all
    float scale;         // log2(e) / temperature; 0: the likeliest token
    float max_distance;  // log2(1 / min_p): how far a token's log2 of probability may lie below the likeliest one's
    float repetition;
    float presence;
    float frequency;
    int unused;
};

// What `counts` says of a token: whether the prompt has it, whether it is in `listed`, how often the answer has it.
constexpr u32 IN_PROMPT = 0x8000, IS_LISTED = 0x4000, MOST_TIMES = 0x3FFF;

struct Row {
    const Scalar* logits;
    const u16* counts;  // null: no logit changes; as wide as the row, to a multiple of 8
    const DrawRow* asked;
    int position;
    int width;
};

struct Unit {
    float values[UNIT];
};

KVPLAN_INLINE float listed_change(const DrawRow& asked, int token, int position) {
    int low = 0, high = asked.num_listed - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (asked.listed[middle].token < token) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const Listed& found = asked.listed[low];
    return position < asked.early_until ? found.early : found.late;
}

// Bias, repetition penalty (over prompt and answer), then frequency and presence penalty (over the answer).
KVPLAN_INLINE float changed(const Row& row, float value, u32 code, int token) {
    if (code == 0) return value;
    const DrawRow& asked = *row.asked;
    if (code & IS_LISTED) {
        const float change = listed_change(asked, token, row.position);
        value = change == minus_infinity() ? change : value + change;
    }
    if (code & (IN_PROMPT | MOST_TIMES)) value = value > 0.0f ? value / asked.repetition : value * asked.repetition;
    if (code & MOST_TIMES) value -= asked.frequency * float(code & MOST_TIMES) + asked.presence;
    return value;
}

// Tokens start to start + UNIT - 1, minus infinity where the row has ended.
KVPLAN_INLINE Unit load_unit(const Row& row, int start) {
    Unit unit;
    if (VECTORS && start + UNIT <= row.width) {
        using Part = Elements<Scalar, VECTORS ? UNIT : 1>;
        const Part part = Part::load(row.logits + start);
        KVPLAN_UNROLL
        for (int i = 0; i < UNIT; ++i) unit.values[i] = part.values[VECTORS ? i : 0];
    } else {
        KVPLAN_UNROLL
        for (int i = 0; i < UNIT; ++i) {
            unit.values[i] = start + i < row.width ? to_float(row.logits[start + i]) : minus_infinity();
        }
    }
    if (row.counts == nullptr) return unit;
    KVPLAN_UNROLL
    for (int i = 0; i < UNIT; i += 4) {
        const uint2 codes = load_vector<uint2>(row.counts + start + i);
        if ((codes.x | codes.y) == 0) continue;
        unit.values[i] = changed(row, unit.values[i], codes.x & 0xFFFF, start + i);
        unit.values[i + 1] = changed(row, unit.values[i + 1], codes.x >> 16, start + i + 1);
        unit.values[i + 2] = changed(row, unit.values[i + 2], codes.y & 0xFFFF, start + i + 2);
        unit.values[i + 3] = changed(row, unit.values[i + 3], codes.y >> 16, start + i + 3);
    }
    return unit;
}

// log2 of how many times less likely a token is than the likeliest, whose logit is `most`; of that one 0.
KVPLAN_INLINE float distance_of(float value, float most, float scale) {
    return value == most ? 0.0f : (most - value) * scale;
}
