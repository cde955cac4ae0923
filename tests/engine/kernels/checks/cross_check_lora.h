// Packed products that adapters correct, against plain loops in double precision: part of cross_check.cpp.
#pragma once

#include "cross_check.h"

// Rows 3, 4, 5, ... of 12 in the first slot used, more than a group takes, two others in the second.
struct Corrected {
  std::vector<int32_t> rows{3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, -1, -1, -1, -1, -1, 0, 2, -1, -1, -1, -1, -1, -1};
  std::vector<int32_t> slots{0, 0, 2};
  kvplan_lora_rows args{rows.data(), slots.data(), 3};

  int slot_of(int64_t row) const { return row == 1 ? -1 : (row == 0 || row == 2 ? 2 : 0); }
};

// What the adapters add to one element of a product; `each` is the stacked product that it belongs to.
inline double added(const Tensor& x, const Tensor& down, const Tensor& up, int64_t row, int64_t output, int64_t each,
                    const kvplan_packed_linear& call, int slot) {
  const kvplan_lora_slots& slots = *call.slots;
  double sum = 0;
  for (int64_t k = 0; k < slots.rank && slot >= 0; ++k) {
    double inner = 0;
    for (int64_t i = 0; i < call.inputs; ++i)
      inner += x.at(row * call.x_stride + i) * down.at(((slot * slots.stacked + each) * slots.rank + k) * call.inputs + i);
    sum += inner * up.at((slot * slots.rank + k) * call.outputs + output);
  }
  return sum;
}

// Two stacked products whose border lies at `first`, of an odd rank: as part of the product, and afterwards.
inline void check_lora(int64_t first, int64_t outputs, int activation, int storage) {
  Worst worst("adapters of " + std::to_string(outputs) + " outputs, " + kStorageNames[storage]);
  const int64_t inputs = 77, rows = 12, rank = 5, num_slots = 3;
  const bool gated = activation == KVPLAN_SILU_AND_MUL;
  const int64_t width = gated ? outputs / 2 : outputs;
  Random random{31};
  Tensor x(storage, rows * inputs, random, 1), weight(storage, outputs * inputs, random, 0.1);
  Tensor down(storage, num_slots * 2 * rank * inputs, random, 0.1), up(storage, num_slots * rank * outputs, random, 0.3);
  const int64_t packed_size = kvplan_packed_outputs(outputs) * kvplan_packed_inputs(inputs, storage);
  Tensor packed(storage, packed_size), out(storage, rows * width), later(storage, rows * outputs);
  kvplan_pack_weight(weight.data(), packed.data(), inputs, outputs, gated, storage, threads);
  const Corrected corrected;
  const int64_t ends[] = {first, outputs};
  const kvplan_lora_slots slots{down.data(), up.data(), rank, 2, ends};
  kvplan_packed_linear call{x.data(), packed.data(), nullptr, out.data(), inputs, width, rows, inputs, outputs,
                            activation, storage, nullptr, &slots, &corrected.args, nullptr};
  worst.expect(kvplan_multiply_packed(&call, threads) == KVPLAN_OK);
  call.out = later.data(), call.out_stride = outputs;
  worst.expect(kvplan_correct(&call, threads) == KVPLAN_OK);
  const double slack = storage == KVPLAN_BFLOAT16 ? 1e-2 : 2e-5;  // the product with A may be rounded to the storage
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> sums;
    for (int64_t o = 0; o < outputs; ++o) {
      const double extra = added(x, down, up, row, o, o < first ? 0 : 1, call, corrected.slot_of(row));
      worst.see(later.at(row * outputs + o), extra, storage, extra == 0 ? 0 : slack);
      double sum = extra;
      for (int64_t i = 0; i < inputs; ++i) sum += x.at(row * inputs + i) * weight.at(o * inputs + i);
      sums.push_back(sum);
    }
    for (int64_t o = 0; o < width; ++o) {
      const size_t at = static_cast<size_t>(o);
      const double want = gated ? silu(sums[at]) * sums[at + static_cast<size_t>(width)] : sums[at];
      worst.see(out.at(row * width + o), want, storage, 4 * slack);
    }
  }
}
