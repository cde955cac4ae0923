// LoRA: for each row x, out += (x A^T) B with the A and B of the row's adapter. A group's rows share them, so that each
// element of A and B is read once for up to eight rows.
#include "../../include/kvplan_lora.h"

#include <vector>

#include "../parallel.h"
#include "../simd.h"

namespace kvplan {
namespace {

// x[i], out[i]: of the group's N rows; a group of fewer repeats its first row, whose results are then not kept.
template <class T, int N>
struct Group {
  const T* x[N];
  T* out[N];
  int count;
};

// inner[k][i] = x[i] . A[k]
template <class T, int N>
void narrow(const kvplan_lora& args, const Group<T, N>& group, const T* down, float* inner) {
  const int64_t whole = args.inputs / kLanes * kLanes;
  const int rest = static_cast<int>(args.inputs - whole);
  for (int64_t k = 0; k < args.stacked * args.rank; ++k) {
    const T* row = down + k * args.inputs;
    Floats sums[N] = {};
    for (int64_t j = 0; j < whole; j += kLanes) {
      const Floats weight = load(row + j);
      for (int i = 0; i < N; ++i) sums[i] += weight * load(group.x[i] + j);
    }
    if (rest > 0) {
      const Floats weight = load_part(row + whole, rest);
      for (int i = 0; i < N; ++i) sums[i] += weight * load_part(group.x[i] + whole, rest);
    }
    for (int i = 0; i < N; ++i) inner[k * N + i] = sum_of(sums[i]);
  }
}

// out[i][first : end] += sum over k of inner[k][i] B[k][first : end]
template <class T, int N>
void widen(const kvplan_lora& args, const Group<T, N>& group, const T* up, const float* inner, int64_t first,
           int64_t end) {
  for (int64_t j = first; j < end; j += kLanes) {
    const int count = static_cast<int>(end - j < kLanes ? end - j : kLanes);
    const bool is_whole = count == kLanes;
    Floats sums[N] = {};
    for (int64_t k = 0; k < args.rank; ++k) {
      const T* row = up + k * args.outputs + j;
      const Floats weight = is_whole ? load(row) : load_part(row, count);
      for (int i = 0; i < N; ++i) sums[i] += weight * splat(inner[k * N + i]);
    }
    for (int i = 0; i < group.count; ++i) {
      T* out = group.out[i] + j;
      if (is_whole)
        store(out, load(out) + sums[i]);
      else
        store_part(out, load_part(out, count) + sums[i], count);
    }
  }
}

template <class T, int N>
void correct(const kvplan_lora& args, int64_t number, int count) {
  static thread_local std::vector<float> inner;
  inner.resize(static_cast<size_t>(args.stacked * args.rank * N));
  const int32_t* rows = args.rows + number * KVPLAN_LORA_ROWS;
  Group<T, N> group = {};
  group.count = count;
  for (int i = 0; i < N; ++i) {
    const int64_t row = rows[i < count ? i : 0];
    group.x[i] = static_cast<const T*>(args.x) + row * args.x_stride;
    group.out[i] = static_cast<T*>(args.out) + row * args.out_stride;
  }
  const int64_t slot = args.slots[number];
  narrow<T, N>(args, group, static_cast<const T*>(args.down) + slot * args.stacked * args.rank * args.inputs,
               inner.data());
  const T* up = static_cast<const T*>(args.up) + slot * args.rank * args.outputs;
  for (int64_t each = 0, first = 0; each < args.stacked; ++each) {
    widen<T, N>(args, group, up, inner.data() + each * args.rank * N, first, args.ends[each]);
    first = args.ends[each];
  }
}

template <class T>
void correct_group(const kvplan_lora& args, int64_t number) {
  const int32_t* rows = args.rows + number * KVPLAN_LORA_ROWS;
  int count = 0;
  while (count < KVPLAN_LORA_ROWS && rows[count] >= 0) ++count;
  if (count > 4)
    correct<T, KVPLAN_LORA_ROWS>(args, number, count);
  else if (count > 1)
    correct<T, 4>(args, number, count);
  else if (count == 1)
    correct<T, 1>(args, number, count);
}

}  // namespace
}  // namespace kvplan

int kvplan_correct(const kvplan_lora* args, int threads) {
  kvplan::for_each_item(args->groups, threads, [&](int, int64_t number) {
    if (args->storage == KVPLAN_BFLOAT16)
      kvplan::correct_group<kvplan::BFloat16>(*args, number);
    else
      kvplan::correct_group<float>(*args, number);
  });
  return KVPLAN_OK;
}
