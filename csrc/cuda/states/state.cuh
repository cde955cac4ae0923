// What the kernels of layers with a state share: where the state of a sequence lies, and which tokens go through it.
//
// A state is rows of equal size. They fill the blocks of a sequence's bundle in order, from the first row's place on; one
// that does not fit begins the next block.
#pragma once

#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;  // of the tokens
using State = KVPLAN_STATE;    // of the pool

struct StatePlace {
    // [num_blocks, block_bytes]
    u8* blocks;
    // [sequences, table_stride]  blocks of each sequence's states; -1 in the first column: no sequence
    const int* tables;
    // [sequences + 1]  first new token of each sequence
    const int* query_starts;
    // [tokens]  a sequence whose first new token is at position 0 starts from zeros
    const i64* positions;
    i64 block_bytes;
    int table_stride;
    int slot;        // of the bundle's blocks, the one with row 0
    int offset;      // bytes from its start to row 0
    int first_rows;  // rows in it
    int rows_each;   // rows in each block behind it
};

// The tokens of one sequence in this step.
struct Tokens {
    const int* table;
    int begin;
    int end;
    bool is_new;
};

// begin == end where there is nothing to do.
KVPLAN_INLINE Tokens tokens_of(int sequence, const StatePlace& place) {
    Tokens tokens = {place.tables + i64(sequence) * place.table_stride, place.query_starts[sequence],
                     place.query_starts[sequence + 1], false};
    if (tokens.table[0] < 0) tokens.end = tokens.begin;
    if (tokens.begin < tokens.end) tokens.is_new = place.positions[tokens.begin] == 0;
    return tokens;
}

// Row `row` of `elements` elements of a sequence's state.
KVPLAN_INLINE State* state_row(const Tokens& tokens, int row, int elements, const StatePlace& place) {
    const int behind = row - place.first_rows;
    const int slot = behind < 0 ? place.slot : place.slot + 1 + behind / place.rows_each;
    const int first = behind < 0 ? place.offset : 0, number = behind < 0 ? row : behind % place.rows_each;
    u8* block = place.blocks + tokens.table[slot] * place.block_bytes;
    return reinterpret_cast<State*>(block + first) + i64(number) * elements;
}

KVPLAN_INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

KVPLAN_INLINE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
