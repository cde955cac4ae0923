// Where the rows of a sequence's state lie in the pool.
#pragma once

#include <cstdint>

#include "../../include/kvplan_states.h"
#include "../simd.h"

namespace kvplan {

class StateRows {
 public:
  explicit StateRows(const kvplan_state& state)
      : state_(state),
        row_bytes_(state.columns * (state.storage == KVPLAN_BFLOAT16 ? 2 : 4)),
        num_first_((state.block_bytes - state.offset) / row_bytes_),
        num_each_(state.block_bytes / row_bytes_) {}

  // Whether every row of every sequence of the step lies in the pool, and its tokens among the step's.
  bool is_sound() const {
    if (num_first_ < 1 || num_each_ < 1) return false;
    const int64_t last = slot_of(state_.rows - 1);
    if (last >= state_.table_width) return false;
    for (int64_t sequence = 0; sequence < state_.num_sequences; ++sequence) {
      const int64_t begin = state_.query_starts[sequence], end = state_.query_starts[sequence + 1];
      if (begin < 0 || end < begin || end > state_.num_tokens) return false;
      if (!has_tokens(sequence)) continue;
      const int32_t* table = state_.tables + sequence * state_.table_stride;
      for (int64_t slot = state_.slot; slot <= last; ++slot)
        if (table[slot] < 0 || table[slot] >= state_.num_blocks) return false;
    }
    return true;
  }

  bool has_tokens(int64_t sequence) const {
    return state_.query_starts[sequence] < state_.query_starts[sequence + 1] &&
           state_.tables[sequence * state_.table_stride] >= 0;
  }

  // A sequence that starts from zeros.
  bool is_new(int64_t sequence) const {
    return state_.positions[state_.query_starts[sequence]] == 0;
  }

  // How many rows from `index` on lie one behind the other.
  int64_t rows_together(int64_t index) const {
    const int64_t behind = index - num_first_;
    return behind < 0 ? -behind : num_each_ - behind % num_each_;
  }

  template <class S>
  S* row(int64_t sequence, int64_t index) const {
    const int64_t slot = slot_of(index), behind = index - num_first_;
    const int64_t offset = behind < 0 ? state_.offset + index * row_bytes_ : behind % num_each_ * row_bytes_;
    const int64_t block = state_.tables[sequence * state_.table_stride + slot];
    return reinterpret_cast<S*>(static_cast<char*>(state_.blocks) + block * state_.block_bytes + offset);
  }

 private:
  int64_t slot_of(int64_t index) const {
    return index < num_first_ ? state_.slot : state_.slot + 1 + (index - num_first_) / num_each_;
  }

  const kvplan_state& state_;
  const int64_t row_bytes_, num_first_, num_each_;
};

// The first `width` elements of a row as floats, and back.
template <class S>
KVPLAN_INLINE void read_row(const S* source, float* target, int64_t width) {
  int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes) store(target + column, load(source + column));
  if (column < width) {
    const int rest = static_cast<int>(width - column);
    store_part(target + column, load_part(source + column, rest), rest);
  }
}

template <class S>
KVPLAN_INLINE void write_row(const float* source, S* target, int64_t width) {
  int64_t column = 0;
  for (; column + kLanes <= width; column += kLanes) store(target + column, load(source + column));
  if (column < width) {
    const int rest = static_cast<int>(width - column);
    store_part(target + column, load_part(source + column, rest), rest);
  }
}

}  // namespace kvplan
