// Rows times silu of a gate, with a norm of each group of columns behind the gate or before it.
#include <cmath>
#include <vector>

#include "../../include/kvplan_mamba.h"
#include "../parallel.h"
#include "../simd_math.h"
#include "state_working.h"

namespace kvplan {
namespace {

// Whole vectors, the last one filled up with zeros: they add nothing to a sum of squares.
struct Row {
  std::vector<float> values, gates;
  int64_t padded;
};

KVPLAN_INLINE void multiply_by_gate(const kvplan_gated_rows& args, Row& row) {
  for (int64_t i = 0; i < row.padded; i += kLanes) {
    const Floats gate = load(row.gates.data() + i);
    store(row.values.data() + i, load(row.values.data() + i) * (args.sigmoid ? sigmoid(gate) : silu(gate)));
  }
}

template <class T>
void normalise(const kvplan_gated_rows& args, const T* weight, int64_t width, Row& row) {
  Floats sum = {};
  for (int64_t i = 0; i < row.padded; i += kLanes) {
    const Floats value = load(row.values.data() + i);
    sum += value * value;
  }
  const float scale = 1.0f / std::sqrt(sum_of(sum) / static_cast<float>(width) + args.eps);
  for (int64_t i = 0; i < row.padded; i += kLanes) {
    const Floats factor = i + kLanes <= width ? load(weight + i) : load_part(weight + i, static_cast<int>(width - i));
    store(row.values.data() + i, load(row.values.data() + i) * scale * factor);
  }
}

template <class T>
void run_group(const kvplan_gated_rows& args, int64_t token, int64_t first, int64_t width, Row& row) {
  T* x = static_cast<T*>(args.x) + token * args.x_stride + first;
  read_padded(x, row.values.data(), width);
  read_padded(static_cast<const T*>(args.gate) + token * args.gate_stride + first, row.gates.data(), width);
  if (!args.norm_first) multiply_by_gate(args, row);
  if (args.weight != nullptr)
    normalise(args, static_cast<const T*>(args.weight) + (args.same_weight ? 0 : first), width, row);
  if (args.norm_first) multiply_by_gate(args, row);
  write_row(row.values.data(), x, width);
}

template <class T>
int run(const kvplan_gated_rows& args, int threads) {
  const int64_t width = args.width / args.groups, padded = padded_columns(width);
  for_each_range(args.rows * args.groups, row_grain(width), threads, [&](int64_t begin, int64_t end) {
    static thread_local Row row;
    row.values.resize(static_cast<size_t>(padded));
    row.gates.resize(static_cast<size_t>(padded));
    row.padded = padded;
    for (int64_t item = begin; item < end; ++item)
      run_group<T>(args, item / args.groups, item % args.groups * width, width, row);
  });
  return KVPLAN_OK;
}

}  // namespace
}  // namespace kvplan

int kvplan_gate_rows(const kvplan_gated_rows* args, int threads) {
  if (args->groups < 1 || args->width % args->groups != 0) return KVPLAN_BAD_INDEX;
  return args->storage == KVPLAN_BFLOAT16 ? kvplan::run<kvplan::BFloat16>(*args, threads)
                                          : kvplan::run<float>(*args, threads);
}
