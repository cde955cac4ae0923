// What adapters add to some rows of a product. Rows of one adapter are taken together, so that its A and B are read once
// for up to eight of them.
#pragma once

#include <algorithm>
#include <vector>

#include "../packed/packed_product.h"
#include "lora_tile.h"

namespace kvplan {

constexpr int kLoraRows = KVPLAN_LORA_ROWS;
constexpr int64_t kLoraItemRanks = 8;  // rows of A in an item of work

// Up to kLoraRows rows of one slot.
struct LoraGroup {
  const int32_t* rows;
  int count;
  int32_t slot;
};

// Rows [first, end) of a product. First narrow() every item, then widen() every panel; both may run on several threads.
// Its memory is that of the thread that makes it, until this makes another.
template <class T>
class LoraRows {
 public:
  LoraRows(const kvplan_packed_linear& args, int64_t first, int64_t end)
      : args_(args), first_(first), groups_(memory().groups) {
    groups_.clear();
    if (args.corrected == nullptr) return;
    const kvplan_lora_rows& step = *args.corrected;
    for (int64_t i = 0; i < step.groups; ++i) {
      const int32_t* from = step.rows + i * kLoraRows;
      const int32_t* stop = std::find(from, from + kLoraRows, -1);
      from = std::lower_bound(from, stop, first);
      const int32_t* to = std::lower_bound(from, stop, end);
      if (from < to) groups_.push_back({from, static_cast<int>(to - from), step.slots[i]});
    }
    if (groups_.empty()) return;
    inner_stride_ = packed_inputs<T>(args.slots->rank);
    item_ranks_ = divided_up(args.slots->rank, kLoraItemRanks);
    memory().inner.resize(groups_.size() * static_cast<size_t>(kLoraRows * args.slots->stacked * inner_stride_));
    inner_ = memory().inner.data();
  }

  bool is_empty() const { return groups_.empty(); }
  int64_t items() const {
    return is_empty() ? 0 : static_cast<int64_t>(groups_.size()) * args_.slots->stacked * item_ranks_;
  }

  // x A^T, for some ranks of one of the stacked products.
  void narrow(int64_t item) const {
    const kvplan_lora_slots& slots = *args_.slots;
    const int64_t begin = item % item_ranks_ * kLoraItemRanks, each = item / item_ranks_ % slots.stacked;
    const int64_t number = item / item_ranks_ / slots.stacked;
    const LoraGroup& group = groups_[static_cast<size_t>(number)];
    for (int r = 0; r < group.count; r += kNarrowRows)
      for (int64_t k = begin; k < std::min(begin + kLoraItemRanks, slots.rank); k += kNarrowRanks)
        narrow_tile_of(std::min(group.count - r, kNarrowRows), group, r, each, k, inner_of(number, r, each));
  }

  // Adds its product with B to `count` outputs from `output` on of all rows. sums [end - first, kPanelOutputs]
  void widen(int64_t output, int64_t count, float* sums) const {
    for (size_t number = 0; number < groups_.size(); ++number)
      for (int64_t each = 0, begin = 0; each < args_.slots->stacked; begin = args_.slots->ends[each++]) {
        const int64_t from = std::max(output, begin), to = std::min(output + count, args_.slots->ends[each]);
        if (from < to) widen_group(static_cast<int64_t>(number), each, from, to - from, sums + (from - output));
      }
  }

  // The same for the panel of a packed weight, or for the gate's and up's that begin at `panel`.
  void widen_panels(int64_t panel, float* sums) const {
    if (is_empty()) return;
    const bool pair = is_gated(args_.activation);
    for (int64_t i = 0; i < (pair ? 2 : 1); ++i) {
      const int64_t output = first_output(panel + i, args_.outputs, pair);
      widen(output, std::min<int64_t>(args_.outputs - output, kPanelOutputs), sums + i * kPanelSums);
    }
  }

 private:
  using X = Input<T>;
  struct Memory {
    std::vector<LoraGroup> groups;
    std::vector<X> inner;
  };
  static Memory& memory() {
    static thread_local Memory own;
    return own;
  }

  // [groups, kLoraRows, stacked, inner_stride_]
  X* inner_of(int64_t number, int row, int64_t each) const {
    return inner_ + ((number * kLoraRows + row) * args_.slots->stacked + each) * inner_stride_;
  }

  void narrow_tile_of(int rows, const LoraGroup& group, int row, int64_t each, int64_t rank, X* inner) const {
    if (rows == 1) return narrow_ranks<1>(group, row, each, rank, inner);
    if (rows == 2) return narrow_ranks<2>(group, row, each, rank, inner);
    if (rows == 3) return narrow_ranks<3>(group, row, each, rank, inner);
    narrow_ranks<4>(group, row, each, rank, inner);
  }

  // x A^T of kRows rows of the group from `row` on, for the ranks from `rank` on.
  template <int kRows>
  void narrow_ranks(const LoraGroup& group, int row, int64_t each, int64_t rank, X* inner) const {
    const kvplan_lora_slots& slots = *args_.slots;
    const T* rows = static_cast<const T*>(slots.down) + (group.slot * slots.stacked + each) * slots.rank * args_.inputs;
    const T *x[kRows], *down[kNarrowRanks];
    for (int r = 0; r < kRows; ++r) x[r] = static_cast<const T*>(args_.x) + group.rows[row + r] * args_.x_stride;
    for (int c = 0; c < kNarrowRanks; ++c)  // what is missing repeats the last one, and is not kept
      down[c] = rows + std::min(rank + c, slots.rank - 1) * args_.inputs;
    Floats4 result[kRows];
    narrow_tile<kRows>(x, down, args_.inputs, result);
    const int ranks = static_cast<int>(std::min<int64_t>(slots.rank - rank, kNarrowRanks));
    for (int r = 0; r < kRows; ++r) {
      X* target = inner + r * slots.stacked * inner_stride_ + rank;
      Floats values = {};
      std::memcpy(&values, result + r, sizeof result[r]);
      store_part(target, values, ranks);
      if (rank + ranks == slots.rank && slots.rank < inner_stride_) target[ranks] = X{};
    }
  }

  void widen_group(int64_t number, int64_t each, int64_t output, int64_t outputs, float* sums) const {
    const kvplan_lora_slots& slots = *args_.slots;
    const LoraGroup& group = groups_[static_cast<size_t>(number)];
    float* targets[kLoraRows];
    const X* inner[kLoraRows];
    for (int r = 0; r < group.count; ++r) {
      targets[r] = sums + (group.rows[r] - first_) * kPanelOutputs;
      inner[r] = inner_of(number, r, each);
    }
    const T* up = static_cast<const T*>(slots.up) + group.slot * slots.rank * args_.outputs + output;
    const WidenStep<T> step{up, args_.outputs, slots.rank, targets, inner};
    static constexpr void (*kTiles[kLoraRows])(const WidenStep<T>&) = {
        widen_panel<1, T>, widen_panel<2, T>, widen_panel<3, T>, widen_panel<4, T>,
        widen_panel<5, T>, widen_panel<6, T>, widen_panel<7, T>, widen_panel<8, T>};
    if (outputs < kPanelOutputs)
      widen_some(step, group.count, outputs);
    else
      kTiles[group.count - 1](step);
  }

  const kvplan_packed_linear& args_;
  int64_t first_, inner_stride_ = 0, item_ranks_ = 0;
  std::vector<LoraGroup>& groups_;
  X* inner_ = nullptr;
};

}  // namespace kvplan
