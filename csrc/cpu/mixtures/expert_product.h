// One product of an expert: the rows that take it with one of its weights, dense or quantised.
#pragma once

#include <vector>

#include "mixture_rows.h"
#include "../products/rounded/rounded_product.h"

namespace kvplan {

// A weight [outputs, inputs] of an expert in panels. format: NULL where it is dense. order: of its inputs, or NULL.
struct ExpertWeight {
  const uint8_t* packed;
  const kvplan_weight_format* format;
  const int32_t* order;
  int64_t inputs;
};

// Rows that are multiplied: row i is row tokens[i] of x, or row i where there are no tokens.
template <class T>
struct TakenRows {
  const T* x;
  int64_t stride;
  const int32_t* tokens;
  int64_t rows;

  const T* row(int64_t i) const { return x + (tokens == nullptr ? i : tokens[i]) * stride; }
};

template <class T>
int64_t expert_elements(int64_t inputs, int64_t outputs, bool pairs) {
  return num_panels(outputs, pairs) * kPanelOutputs * packed_inputs<T>(inputs);
}

// That of expert `index`, of weights one after the other.
template <class T>
ExpertWeight weight_at(const void* packed, const kvplan_weight_format* format, int64_t index, int64_t inputs,
                       int64_t outputs, bool pairs) {
  const uint8_t* first = static_cast<const uint8_t*>(packed);
  if (format == nullptr)
    return {first + index * expert_elements<T>(inputs, outputs, pairs) * int64_t{sizeof(T)}, nullptr, nullptr, inputs};
  const int64_t bytes = num_panels(outputs, pairs) * CodeLayout(*format, inputs).panel_bytes();
  const int32_t* order = format->input_order == nullptr ? nullptr : format->input_order + index * inputs;
  return {first + index * bytes, format, order, inputs};
}

// The rows as products with W read them: where they lie, or copied together into the thread's memory. is_there: the last
// call copied them.
template <class W, class T>
const Input<W>* gathered(const ExpertWeight& weight, const TakenRows<T>& taken, bool is_there, int64_t& stride) {
  const int64_t inputs = weight.inputs;
  const bool lie_together = (taken.tokens == nullptr || taken.rows == 1) && weight.order == nullptr;
  if constexpr (sizeof(T) == sizeof(Input<W>)) {
    stride = taken.stride;
    if (lie_together && reads_in_place<T>(inputs, taken.stride, taken.rows))
      return reinterpret_cast<const Input<W>*>(taken.row(0));
  }
  stride = copied_stride<W>(inputs);
  Input<W>* memory = row_memory<W>(chunk_rows<W>(inputs) * stride);
  for (int64_t i = 0; i < taken.rows && !is_there; ++i) {
    if (weight.order == nullptr) {
      copy_row(taken.row(i), memory + i * stride, inputs);
    } else {
      copy_row_in_order(taken.row(i), weight.order, inputs, inputs, memory + i * stride);
    }
  }
  return memory;
}

// The sums of each group of the rows' inputs, for formats with minimums.
template <class X>
const float* gathered_sums(const X* x, int64_t stride, int64_t rows, const CodeLayout& layout, bool is_there) {
  static thread_local std::vector<float> memory;
  const size_t wanted = layout.has_minimum ? static_cast<size_t>(rows * layout.groups) : 0;
  if (wanted == 0) return nullptr;
  if (memory.size() < wanted) memory.resize(wanted);
  for (int64_t i = 0; i < rows && !is_there; ++i) sum_groups(x + i * stride, layout, memory.data() + i * layout.groups);
  return memory.data();
}

template <class W, class T, class Finish>
void run_quantised_product(const ExpertWeight& weight, const TakenRows<T>& taken, int64_t begin, int64_t end,
                           bool pairs, bool is_there, const Finish& finish) {
  const CodeLayout layout(*weight.format, weight.inputs);
  int64_t stride;
  const Input<W>* x = gathered<W>(weight, taken, is_there, stride);
  const float* x_sums = gathered_sums(x, stride, taken.rows, layout, is_there);
  const QuantisedProduct<W> product{*weight.format, layout, weight.packed, x, stride, taken.rows, x_sums};
  run_quantised_panels(product, begin, end, pairs, unit_sums(), finish);
}

// The same of rows that are rounded to 8 bits.
template <class T, class Finish>
void run_rounded_product(const ExpertWeight& weight, const TakenRows<T>& taken, int64_t begin, int64_t end, bool pairs,
                         bool is_there, const Finish& finish) {
  const CodeLayout layout(*weight.format, weight.inputs);
  const RowRounding rounding(*weight.format, layout, weight.inputs, taken.rows);
  for (int64_t i = 0; i < taken.rows && !is_there; ++i) rounding.round(i, taken.row(i), weight.order);
  const RoundedProduct product{layout, weight.packed, rounding.rows(), taken.rows};
  run_rounded_panels(product, begin, end, pairs, unit_sums(), finish);
}

// Panels [begin, end) of the product: finish(panel, rows, sums) for each, or for each pair of them. is_there: this
// thread's last product was of the same rows.
template <class T, class Finish>
void run_product(const ExpertWeight& weight, const TakenRows<T>& taken, int64_t begin, int64_t end, bool pairs,
                 bool is_there, const Finish& finish) {
  if (weight.format != nullptr) {
    if (weight.format->rounds_inputs != 0)
      return run_rounded_product(weight, taken, begin, end, pairs, is_there, finish);
#if KVPLAN_BFLOAT16_CODES
    if constexpr (sizeof(T) == sizeof(BFloat16)) {
      if (is_exact_in_bfloat16(*weight.format))
        return run_quantised_product<BFloat16>(weight, taken, begin, end, pairs, is_there, finish);
    }
#endif
    return run_quantised_product<float>(weight, taken, begin, end, pairs, is_there, finish);
  }
  int64_t stride;
  const Input<T>* x = gathered<T>(weight, taken, is_there, stride);
  const PackedProduct<T> product{reinterpret_cast<const T*>(weight.packed), weight.inputs, taken.rows, x, stride,
                                 unit_panels<T>(pairs, taken.rows)};
  run_panels(product, begin, end, pairs, unit_sums(), finish);
}

// Rows of one chunk: what stays in the second-level cache as T, or as the floats that they may be widened to.
template <class T>
int64_t product_rows(const ExpertWeight& weight) {
  return weight.format == nullptr ? chunk_rows<T>(weight.inputs) : chunk_rows<float>(weight.inputs);
}

}  // namespace kvplan
