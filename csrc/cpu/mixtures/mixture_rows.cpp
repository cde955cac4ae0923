// A mixture's router: every row's logits, its choice of experts, and the rows sorted by expert.
#include "mixture_rows.h"

#include <algorithm>
#include <vector>

#include "../products/packed/packed_product.h"
#include "../parallel.h"
#include "routing.h"

namespace kvplan {
namespace {

constexpr int64_t kRouterRows = 16;  // rows that a thread routes at a time

int64_t whole_vectors(int64_t count) {
  return divided_up(count, kLanes) * kLanes;
}

int64_t router_outputs(const kvplan_router& router) {
  return router.num_experts + (router.shared_gate ? 1 : 0);
}

// logits [rows, whole_vectors(router_outputs)] of rows from `row` on.
template <class T>
void score_rows(const kvplan_mixture& args, int64_t row, int64_t rows, float* logits) {
  const int64_t outputs = router_outputs(args.router), inputs = args.hidden;
  const int64_t stride = copied_stride<T>(inputs);
  Input<T>* copy = row_memory<T>(kRouterRows * stride);
  for (int64_t i = 0; i < rows; ++i)
    copy_row(static_cast<const T*>(args.x) + (row + i) * args.x_stride, copy + i * stride, inputs);
  const PackedProduct<T> product{static_cast<const T*>(args.router.packed), inputs, rows, copy, stride,
                                 unit_panels<T>(false, rows)};
  const PanelResult<T, float> result{static_cast<const T*>(args.router.bias), logits, whole_vectors(outputs), outputs,
                                     KVPLAN_NO_ACTIVATION,                    0.0f};
  run_panels(product, 0, num_panels(outputs, false), false, unit_sums(), result);
}

}  // namespace

bool can_route(const kvplan_router& router) {
  return router.top_k > 0 && router.num_groups > 0 && router.num_groups <= KVPLAN_MOST_GROUPS &&
         router.num_experts % router.num_groups == 0 && router.top_groups <= router.num_groups &&
         router.top_k <= router.num_experts / router.num_groups * router.top_groups;
}

template <class T>
void route(const kvplan_mixture& args, float* shared_weights, int threads) {
  const kvplan_router& router = args.router;
  const int64_t width = whole_vectors(router_outputs(router));
  // few rows: one for each thread
  const int64_t most = std::min(kRouterRows, divided_up(args.rows, threads));
  for_each_item(divided_up(args.rows, most), threads, [&](int, int64_t item) {
    static thread_local std::vector<float> memory;
    memory.resize(static_cast<size_t>((most + 1) * width));
    float* choice = memory.data() + most * width;
    const int64_t begin = item * most, rows = std::min(most, args.rows - begin);
    score_rows<T>(args, begin, rows, memory.data());
    for (int64_t i = 0; i < rows; ++i) {
      float* logits = memory.data() + i * width;
      if (router.shared_gate) shared_weights[begin + i] = sigmoid(splat(logits[router.num_experts]))[0];
      choose_experts(router, logits, choice, args.expert_ids + (begin + i) * router.top_k,
                     args.expert_weights + (begin + i) * router.top_k);
    }
  });
}

template void route<float>(const kvplan_mixture& args, float* shared_weights, int threads);
template void route<BFloat16>(const kvplan_mixture& args, float* shared_weights, int threads);

void sort_rows(const kvplan_mixture& args, SortedRows& sorted) {
  const int64_t experts = args.router.num_experts, top_k = args.router.top_k, pairs = args.rows * top_k;
  sorted.starts.assign(static_cast<size_t>(experts + 1), 0);
  sorted.tokens.resize(static_cast<size_t>(pairs));
  sorted.weights.resize(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) ++sorted.starts[static_cast<size_t>(args.expert_ids[i]) + 1];
  for (int64_t e = 0; e < experts; ++e) sorted.starts[static_cast<size_t>(e + 1)] += sorted.starts[static_cast<size_t>(e)];
  std::vector<int64_t> next(sorted.starts.begin(), sorted.starts.end() - 1);
  for (int64_t i = 0; i < pairs; ++i) {
    const size_t at = static_cast<size_t>(next[static_cast<size_t>(args.expert_ids[i])]++);
    sorted.tokens[at] = static_cast<int32_t>(i / top_k);
    sorted.weights[at] = args.expert_weights[i];
  }
}

}  // namespace kvplan

int kvplan_route(const kvplan_mixture* args, int threads) {
  if (!kvplan::can_route(args->router)) return KVPLAN_BAD_INDEX;
  if (args->rows == 0) return KVPLAN_OK;
  std::vector<float> shared_weights(static_cast<size_t>(args->rows));
  const int used = threads > 0 ? threads : 1;
  if (args->storage == KVPLAN_BFLOAT16) {
    kvplan::route<kvplan::BFloat16>(*args, shared_weights.data(), used);
  } else {
    kvplan::route<float>(*args, shared_weights.data(), used);
  }
  return KVPLAN_OK;
}
