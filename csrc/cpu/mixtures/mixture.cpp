// A mixture of experts: rows are sorted by expert (mixture_rows.cpp), and each expert's two products run over the rows
// that chose it (expert_product.h). What no row chose is not read.
//
// Threads take panels of an expert in turn, so that few rows with many experts and many rows with few keep all of them
// busy. In the second product a thread owns some of the outputs and walks through all experts in order, adding to its
// rows' sums: no two threads add to the same sum, and the order of additions is always the same.
#include <algorithm>
#include <vector>

#include "expert_product.h"
#include "mixture_rows.h"
#include "../parallel.h"

namespace kvplan {
namespace {

constexpr int64_t kSumBytes = 32 << 20;  // of the sums of all outputs: what bounds the rows of one pass
constexpr int64_t kItemPanels = 8;       // a thread takes at most so many at a time

// An expert, or the shared one, with the rows that take it.
template <class T>
struct Expert {
  ExpertWeight up, down;
  const T* up_bias;
  const T* down_bias;
  int64_t size;
  int activation;
  float limit;
  int64_t rows;
  const int32_t* tokens;  // [rows]: rows of x, ascending; null: all of them
  const float* weights;   // [rows], or null: 1
  T* inner;               // [rows, size]
};

// Some panels of an expert's first product over some of its rows.
struct Item {
  int64_t expert, row, rows, panel, end_panel;
};

// What one pass over at most so many rows needs, kept per calling thread.
struct Pass {
  std::vector<float> shared_weights;
  SortedRows sorted;
  std::vector<Item> items;
};

template <class T>
Expert<T> expert_at(const kvplan_experts& all, int64_t index, int64_t hidden) {
  const bool pairs = is_gated(all.activation);
  const int64_t outputs = pairs ? 2 * all.size : all.size;
  Expert<T> expert{};
  expert.up = weight_at<T>(all.up, all.up_format, index, hidden, outputs, pairs);
  expert.down = weight_at<T>(all.down, all.down_format, index, all.size, hidden, false);
  if (all.up_bias != nullptr) expert.up_bias = static_cast<const T*>(all.up_bias) + index * outputs;
  if (all.down_bias != nullptr) expert.down_bias = static_cast<const T*>(all.down_bias) + index * hidden;
  expert.size = all.size;
  expert.activation = all.activation;
  expert.limit = all.limit;
  return expert;
}

// The experts here that some row takes, in order, the shared one last.
template <class T>
std::vector<Expert<T>> taken_experts(const kvplan_mixture& args, const Pass& pass) {
  std::vector<Expert<T>> taken;
  T* inner = static_cast<T*>(args.inner);
  const int64_t first = args.first_expert;
  for (int64_t e = first; e < first + args.experts.count; ++e) {
    const int64_t start = pass.sorted.starts[static_cast<size_t>(e)], rows = pass.sorted.starts[static_cast<size_t>(e + 1)] - start;
    if (rows == 0) continue;
    Expert<T> expert = expert_at<T>(args.experts, e - first, args.hidden);
    expert.rows = rows;
    expert.tokens = pass.sorted.tokens.data() + start;
    expert.weights = pass.sorted.weights.data() + start;
    expert.inner = inner + start * args.experts.size;
    taken.push_back(expert);
  }
  if (args.shared.count == 0) return taken;
  Expert<T> shared = expert_at<T>(args.shared, 0, args.hidden);
  shared.rows = args.rows;
  shared.weights = args.router.shared_gate ? pass.shared_weights.data() : nullptr;
  shared.inner = inner + args.rows * args.router.top_k * args.experts.size;
  taken.push_back(shared);
  return taken;
}

template <class T>
int64_t up_panels(const Expert<T>& expert) {
  const bool pairs = is_gated(expert.activation);
  return num_panels(pairs ? 2 * expert.size : expert.size, pairs);
}

// The first products cut into items of nearly `most` panels, whole units each.
template <class T>
void cut_items(const std::vector<Expert<T>>& experts, int64_t most, std::vector<Item>& items) {
  items.clear();
  for (size_t e = 0; e < experts.size(); ++e) {
    const int64_t panels = up_panels(experts[e]), chunks = divided_up(experts[e].rows, product_rows<T>(experts[e].up));
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t begin = experts[e].rows * c / chunks, rows = experts[e].rows * (c + 1) / chunks - begin;
      const int64_t unit = unit_panels<T>(is_gated(experts[e].activation), rows);
      const int64_t units = divided_up(panels, unit), parts = divided_up(units, std::max<int64_t>(1, most / unit));
      for (int64_t i = 0; i < parts; ++i)
        items.push_back({static_cast<int64_t>(e), begin, rows, units * i / parts * unit,
                         std::min(panels, units * (i + 1) / parts * unit)});
    }
  }
}

template <class T>
void run_item(const kvplan_mixture& args, const Expert<T>& expert, const Item& item, bool is_there) {
  const T* x = static_cast<const T*>(args.x);
  TakenRows<T> taken{x, args.x_stride, nullptr, item.rows};
  if (expert.tokens == nullptr) {
    taken.x += item.row * args.x_stride;
  } else {
    taken.tokens = expert.tokens + item.row;
  }
  const PanelResult<T, T> result{expert.up_bias, expert.inner + item.row * expert.size, expert.size, expert.size,
                                 expert.activation, expert.limit};
  run_product(expert.up, taken, item.panel, item.end_panel, is_gated(expert.activation), is_there, result);
}

// inner = activation(x @ up) of every expert's rows.
template <class T>
void run_first_products(const kvplan_mixture& args, const std::vector<Expert<T>>& experts, std::vector<Item>& items,
                        int threads) {
  for (int64_t most = kItemPanels; most > 0; most /= 2) {
    cut_items(experts, most, items);
    if (static_cast<int64_t>(items.size()) >= 4 * threads) break;
  }
  std::vector<const Item*> last(static_cast<size_t>(threads));  // whose rows a thread has copied together
  for_each_item(static_cast<int64_t>(items.size()), threads, [&](int worker, int64_t i) {
    const Item& item = items[static_cast<size_t>(i)];
    const Item*& before = last[static_cast<size_t>(worker)];
    const bool is_there = before != nullptr && before->expert == item.expert && before->row == item.row;
    before = &item;
    run_item(args, experts[static_cast<size_t>(item.expert)], item, is_there);
  });
}

// Adds panels [begin, end) of one expert's second product, weighted, to sums [rows of the pass, width].
template <class T>
void add_expert(const Expert<T>& expert, int64_t hidden, int64_t begin, int64_t end, float* sums, int64_t width) {
  const int64_t chunks = divided_up(expert.rows, product_rows<T>(expert.down));
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t row = expert.rows * c / chunks, rows = expert.rows * (c + 1) / chunks - row;
    const TakenRows<T> taken{expert.inner + row * expert.size, expert.size, nullptr, rows};
    run_product(expert.down, taken, begin, end, false, false, [&](int64_t panel, int64_t, const float* products) {
      for (int v = 0; v < kPanelVectors; ++v) {
        const int64_t column = panel * kPanelOutputs + v * kLanes;
        const int64_t left = hidden - column;
        if (left <= 0) return;
        const Floats bias = load_bias(expert.down_bias, column, left < kLanes ? static_cast<int>(left) : kLanes);
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t token = expert.tokens == nullptr ? row + i : expert.tokens[row + i];
          const float weight = expert.weights == nullptr ? 1.0f : expert.weights[row + i];
          float* target = sums + token * width + column - begin * kPanelOutputs;
          store(target, load(target) + weight * (load(products + i * kPanelOutputs + v * kLanes) + bias));
        }
      }
    });
  }
}

// out = the weighted sums of all experts' second products.
template <class T>
void run_second_products(const kvplan_mixture& args, const std::vector<Expert<T>>& experts, int threads) {
  const int64_t panels = num_panels(args.hidden, false);
  const int64_t most = std::min(kItemPanels, args.rows < kMostUnitPanels ? divided_up(panels, 2 * threads)
                                                                         : divided_up(panels, threads));
  const int64_t items = divided_up(panels, most);
  for_each_item(items, threads, [&](int, int64_t item) {
    static thread_local std::vector<float> memory;
    const int64_t begin = panels * item / items, end = panels * (item + 1) / items;
    const int64_t width = (end - begin) * kPanelOutputs, first = begin * kPanelOutputs;
    memory.assign(static_cast<size_t>(args.rows * width), 0.0f);
    for (const Expert<T>& expert : experts) add_expert(expert, args.hidden, begin, end, memory.data(), width);
    for (int64_t row = 0; row < args.rows; ++row) {
      T* target = static_cast<T*>(args.out) + row * args.out_stride + first;
      const int64_t count = std::min(width, args.hidden - first);
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) store(target + i, load(memory.data() + row * width + i));
      if (i < count) store_part(target + i, load(memory.data() + row * width + i), static_cast<int>(count - i));
    }
  });
}

template <class T>
void run_pass(const kvplan_mixture& args, int threads) {
  static thread_local Pass pass;
  pass.shared_weights.resize(static_cast<size_t>(args.rows));
  route<T>(args, pass.shared_weights.data(), threads);
  sort_rows(args, pass.sorted);
  const std::vector<Expert<T>> experts = taken_experts<T>(args, pass);
  run_first_products(args, experts, pass.items, threads);
  run_second_products(args, experts, threads);
}

// The rows from `begin` to `end` - 1 of a mixture. `inner` is used again in every pass.
template <class T>
kvplan_mixture some_rows(const kvplan_mixture& args, int64_t begin, int64_t end) {
  kvplan_mixture some = args;
  some.x = static_cast<const T*>(args.x) + begin * args.x_stride;
  some.out = static_cast<T*>(args.out) + begin * args.out_stride;
  some.expert_ids = args.expert_ids + begin * args.router.top_k;
  some.expert_weights = args.expert_weights + begin * args.router.top_k;
  some.rows = end - begin;
  return some;
}

template <class T>
void run_mixture(const kvplan_mixture& args, int threads) {
  const int64_t most = std::max<int64_t>(kMostChunkRows, kSumBytes / (args.hidden * int64_t{sizeof(float)}));
  const int64_t passes = divided_up(args.rows, most);
  for (int64_t i = 0; i < passes; ++i)
    run_pass<T>(some_rows<T>(args, args.rows * i / passes, args.rows * (i + 1) / passes), threads);
}

}  // namespace
}  // namespace kvplan

int64_t kvplan_packed_expert_elements(int64_t inputs, int64_t outputs, int activation, int storage) {
  using namespace kvplan;
  const bool pairs = is_gated(activation);
  return storage == KVPLAN_BFLOAT16 ? expert_elements<BFloat16>(inputs, outputs, pairs)
                                    : expert_elements<float>(inputs, outputs, pairs);
}

int kvplan_pack_expert(const void* weight, void* packed, int64_t inputs, int64_t outputs, int activation, int storage,
                       int threads) {
  using namespace kvplan;
  const bool pairs = is_gated(activation);
  if (pairs && outputs % 2 != 0) return KVPLAN_BAD_INDEX;
  if (storage == KVPLAN_BFLOAT16) {
    pack(static_cast<const BFloat16*>(weight), static_cast<BFloat16*>(packed), inputs, outputs, pairs, threads);
  } else {
    pack(static_cast<const float*>(weight), static_cast<float*>(packed), inputs, outputs, pairs, threads);
  }
  return KVPLAN_OK;
}

int kvplan_run_mixture(const kvplan_mixture* args, int threads) {
  if (!kvplan::can_route(args->router)) return KVPLAN_BAD_INDEX;
  const int used = threads > 0 ? threads : 1;
  if (args->storage == KVPLAN_BFLOAT16) {
    kvplan::run_mixture<kvplan::BFloat16>(*args, used);
  } else {
    kvplan::run_mixture<float>(*args, used);
  }
  return KVPLAN_OK;
}
