// Rows of a sequence's state as floats in whole vectors: where they lie in the pool if they are so there, else copied.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "state_rows.h"

namespace kvplan {

inline int64_t padded_columns(int64_t columns) {
  return (columns + kLanes - 1) / kLanes * kLanes;
}

// `source` [count] as floats, and zeros up to the next whole vector.
template <class T>
KVPLAN_INLINE void read_padded(const T* source, float* target, int64_t count) {
  int64_t column = 0;
  for (; column + kLanes <= count; column += kLanes) store(target + column, load(source + column));
  if (column < count) store(target + column, load_part(source + column, static_cast<int>(count - column)));
}

KVPLAN_INLINE void put(float* target, float value) {
  *target = value;
}

KVPLAN_INLINE void put(BFloat16* target, float value) {
  store_part(target, splat(value), 1);
}

// Rows [first, first + count) of one sequence; those of a sequence that starts here are zeros.
template <class S>
class WorkingRows {
 public:
  WorkingRows(const StateRows& rows, int64_t sequence, int64_t first, int64_t count, int64_t columns)
      : rows_(rows), sequence_(sequence), first_(first), count_(count), columns_(columns),
        stride_(padded_columns(columns)), in_place_(std::is_same<S, float>::value && stride_ == columns) {
    const bool is_new = rows.is_new(sequence);
    if (!in_place_) memory().assign(static_cast<size_t>(count * stride_), 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      if (in_place_ && is_new) std::memset(stored(i), 0, sizeof(S) * static_cast<size_t>(columns));
      if (!in_place_ && !is_new) read_padded(stored(i), row(i), columns);
    }
  }

  // [padded columns]
  float* row(int64_t i) const {
    return in_place_ ? reinterpret_cast<float*>(stored(i)) : memory().data() + i * stride_;
  }

  void write_back() const {
    for (int64_t i = 0; i < count_ && !in_place_; ++i) write_row(row(i), stored(i), columns_);
  }

 private:
  S* stored(int64_t i) const {
    return rows_.row<S>(sequence_, first_ + i);
  }

  // Kept per thread: one object at a time.
  static std::vector<float>& memory() {
    static thread_local std::vector<float> floats;
    return floats;
  }

  const StateRows& rows_;
  const int64_t sequence_, first_, count_, columns_, stride_;
  const bool in_place_;
};

}  // namespace kvplan
