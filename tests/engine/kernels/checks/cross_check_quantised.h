// Products with quantised weights against plain loops: x as it is, and rounded to 8 bits.
#pragma once

#include "cross_check.h"

namespace {

// Random codes that count evenly, in the layout of kvplan_pack_quantised; scales are powers of two.
struct EvenWeight {
  static constexpr int64_t kGroup = 32;
  int bits;
  int64_t inputs, outputs;
  std::vector<int> codes;
  std::vector<float> scales;
  std::vector<uint8_t> stored, packed;

  EvenWeight(int width, int64_t num_inputs, int64_t num_outputs)
      : bits(width), inputs(num_inputs), outputs(num_outputs), stored(static_cast<size_t>(outputs * inputs * bits / 8)) {
    Random random{5};
    for (int64_t i = 0; i < outputs * inputs; ++i) put(i, static_cast<int>(random.bits() % (1u << bits)));
    for (int64_t i = 0; i < outputs * groups(); ++i)
      scales.push_back(static_cast<float>(std::ldexp(1.0, static_cast<int>(random.bits() % 5) - 6)));
  }

  int64_t groups() const { return inputs / kGroup; }

  void put(int64_t index, int code) {
    codes.push_back(code);
    const int64_t k = index % inputs;
    uint8_t* row = stored.data() + index / inputs * (inputs * bits / 8);
    if (bits == 8) {
      row[k] = static_cast<uint8_t>(code);
      return;
    }
    row[k / 2] = static_cast<uint8_t>(row[k / 2] | (code & 15) << k % 2 * 4);
    uint8_t* upper = row + inputs / 2 + k / 4;
    if (bits == 6) *upper = static_cast<uint8_t>(*upper | code >> 4 << k % 4 * 2);
  }

  kvplan_weight_format format(bool rounds) const {
    return {nullptr, nullptr, bits, zero(), kGroup, KVPLAN_FLOAT32, 0, 0, rounds};
  }

  int zero() const { return 1 << (bits - 1); }

  bool pack() {
    const kvplan_weight_format own = format(false);
    packed.resize(static_cast<size_t>(kvplan_quantised_bytes(&own, inputs, outputs, 0)));
    return kvplan_pack_quantised(&own, stored.data(), scales.data(), nullptr, nullptr, packed.data(), inputs, outputs, 0,
                                 threads) == 0;
  }

  // One row's product with output o, the row's groups rounded by their largest magnitude / 127 or not.
  double product(const std::vector<float>& x, int64_t o, bool rounds) const {
    double total = 0;
    for (int64_t g = 0; g < groups(); ++g) {
      float largest = 0;
      for (int64_t k = g * kGroup; k < (g + 1) * kGroup; ++k) largest = std::max(largest, std::fabs(x[static_cast<size_t>(k)]));
      double sum = 0;
      for (int64_t k = g * kGroup; k < (g + 1) * kGroup; ++k) {
        const float value = x[static_cast<size_t>(k)];
        const int code = codes[static_cast<size_t>(o * inputs + k)] - zero();
        sum += code * static_cast<double>(rounds ? std::nearbyint(value * (127.0f / largest)) : value);
      }
      total += sum * (rounds ? largest / 127.0f : 1.0f) * scales[static_cast<size_t>(o * groups() + g)];
    }
    return total;
  }
};

// Also: a row's result is the same bits whatever the number of rows beside it.
void check_quantised(int bits, bool rounds, int storage) {
  const std::string kind = std::string(rounds ? ", x rounded" : "") + (storage == KVPLAN_BFLOAT16 ? ", bfloat16" : "");
  Worst worst("product with codes of " + std::to_string(bits) + " bits" + kind);
  const int64_t inputs = 96, outputs = 150, most_rows = 40;
  EvenWeight weight(bits, inputs, outputs);
  worst.expect(weight.pack());
  const kvplan_weight_format format = weight.format(rounds);
  Random random{6};
  Tensor x(storage, most_rows * inputs, random, 3), bias(storage, outputs, random, 1);
  std::vector<double> first_row;
  for (int64_t rows : {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{7}, int64_t{13}, most_rows}) {
    Tensor out(storage, rows * outputs);
    const kvplan_packed_linear call{x.data(), weight.packed.data(), bias.data(), out.data(), inputs, outputs, rows, inputs,
                                    outputs, KVPLAN_NO_ACTIVATION, storage, &format, nullptr, nullptr, nullptr};
    worst.expect(kvplan_multiply_packed(&call, threads) == 0);
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<float> own;
      for (int64_t k = 0; k < inputs; ++k) own.push_back(static_cast<float>(x.at(row * inputs + k)));
      for (int64_t o = 0; o < outputs; ++o) {
        const double got = out.at(row * outputs + o);
        worst.see(got, weight.product(own, o, rounds) + bias.at(o), storage, 2e-6 * (1 << bits));
        if (rows == 1) first_row.push_back(got);
        if (row == 0) worst.expect(got == first_row[static_cast<size_t>(o)]);
      }
    }
  }
}

}  // namespace
