// Which rows of a mixture each expert takes.
#pragma once

#include <cstdint>
#include <vector>

#include "../../include/kvplan_cpu.h"
#include "../products/packed/packed_product.h"

namespace kvplan {

// Rows by expert: those of expert e are tokens[starts[e]] to tokens[starts[e + 1] - 1], in order, with their weights.
struct SortedRows {
  std::vector<int64_t> starts;
  std::vector<int32_t> tokens;
  std::vector<float> weights;
};

bool can_route(const kvplan_router& router);

// The choice of all rows, to args.expert_ids and args.expert_weights; shared_weights [rows] where there is a gate.
// T: float or BFloat16.
template <class T>
void route(const kvplan_mixture& args, float* shared_weights, int threads);

// The rows as they chose their experts.
void sort_rows(const kvplan_mixture& args, SortedRows& sorted);

// Memory of a thread for the rows that it multiplies.
template <class T>
Input<T>* row_memory(int64_t elements) {
  static thread_local std::vector<Input<T>> memory;
  if (memory.size() < static_cast<size_t>(elements)) memory.resize(static_cast<size_t>(elements));
  return memory.data();
}

}  // namespace kvplan
