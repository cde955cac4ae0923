// Rows of a sequence's state as floats in whole vectors: where they lie in the pool if they are so there, else copied.
#pragma once

#include <algorithm>
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

// Rows [first, first + count) of one sequence; those of a sequence that starts here are zeros. Uses memory that is kept
// per thread: one object at a time.
template <class S>
class WorkingRows {
 public:
  WorkingRows(const StateRows& rows, int64_t sequence, int64_t first, int64_t count, int64_t columns)
      : columns_(columns), stride_(padded_columns(columns)), stored_(pointers()) {
    const bool is_new = rows.is_new(sequence);
    stored_.clear();
    while (static_cast<int64_t>(stored_.size()) < count) add_run(rows, sequence, first, count);
    if (!kInPlace || stride_ != columns) memory().assign(static_cast<size_t>(count * stride_), 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      if (is_copied() && !is_new) read_padded(stored_[static_cast<size_t>(i)], row(i), columns);
      if (!is_copied() && is_new) std::memset(row(i), 0, sizeof(float) * static_cast<size_t>(columns));
    }
  }

  // [padded columns]
  float* row(int64_t i) const {
    if constexpr (kInPlace)
      if (stride_ == columns_) return stored_[static_cast<size_t>(i)];
    return memory().data() + i * stride_;
  }

  void write_back() const {
    const int64_t count = is_copied() ? static_cast<int64_t>(stored_.size()) : 0;
    for (int64_t i = 0; i < count; ++i) write_row(row(i), stored_[static_cast<size_t>(i)], columns_);
  }

 private:
  static constexpr bool kInPlace = std::is_same<S, float>::value;

  bool is_copied() const {
    return !kInPlace || stride_ != columns_;
  }

  void add_run(const StateRows& rows, int64_t sequence, int64_t first, int64_t count) {
    const int64_t done = static_cast<int64_t>(stored_.size()), next = first + done;
    const int64_t run = std::min(rows.rows_together(next), count - done);
    S* start = rows.row<S>(sequence, next);
    for (int64_t i = 0; i < run; ++i) stored_.push_back(start + i * columns_);
  }

  static std::vector<float>& memory() {
    static thread_local std::vector<float> floats;
    return floats;
  }

  static std::vector<S*>& pointers() {
    static thread_local std::vector<S*> rows;
    return rows;
  }

  const int64_t columns_, stride_;
  std::vector<S*>& stored_;
};

}  // namespace kvplan
