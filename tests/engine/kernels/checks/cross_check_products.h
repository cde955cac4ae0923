// Products with packed weights against plain loops, for the programs that link only these kernels too.
#pragma once

#include <numeric>

#include "cross_check.h"

namespace {

struct Product {
  int64_t inputs, outputs;
  int activation, storage;
};

// x @ weight^T + bias
std::vector<double> plain_product(const Product& p, const Tensor& x, int64_t x_stride, const Tensor& weight,
                                  const Tensor& bias) {
  const std::vector<double> rows = x.values(), columns = weight.values();
  std::vector<double> out;
  for (int64_t row = 0; row * x_stride < x.count(); ++row)
    for (int64_t o = 0; o < p.outputs; ++o) {
      const double *a = rows.data() + row * x_stride, *b = columns.data() + o * p.inputs;
      out.push_back(bias.at(o) + std::inner_product(a, a + p.inputs, b, 0.0));
    }
  return out;
}

double followed(const Product& p, const std::vector<double>& sums, int64_t row, int64_t column) {
  const double* sum = sums.data() + row * p.outputs + column;
  if (p.activation == KVPLAN_GELU_TANH) return gelu_tanh(*sum);
  if (p.activation == KVPLAN_GELU_ERF) return gelu_erf(*sum);
  return p.activation == KVPLAN_SILU_AND_MUL ? silu(*sum) * sum[p.outputs / 2] : *sum;
}

int64_t packed_elements(int64_t outputs, int64_t inputs, int storage) {
  return kvplan_packed_outputs(outputs) * kvplan_packed_inputs(inputs, storage);
}

// Also: a row's result is the same bits whatever the number of rows beside it.
void check_product(const Product& p, const char* name) {
  Worst worst(std::string(name) + ", " + kStorageNames[p.storage]);
  const bool gated = p.activation == KVPLAN_SILU_AND_MUL;
  const int64_t width = gated ? p.outputs / 2 : p.outputs, out_stride = width + 5, x_stride = p.inputs;
  Random random{1};
  Tensor x(p.storage, 200 * x_stride, random, 1), weight(p.storage, p.outputs * p.inputs, random, 0.3);
  Tensor bias(p.storage, p.outputs, random, 1), packed(p.storage, packed_elements(p.outputs, p.inputs, p.storage), 9);
  worst.expect(kvplan_pack_weight(weight.data(), packed.data(), p.inputs, p.outputs, gated, p.storage, threads) == 0);
  const std::vector<double> sums = plain_product(p, x, x_stride, weight, bias);
  std::vector<double> first_row;
  for (int64_t rows : {1, 2, 3, 7, 64, 200}) {
    Tensor out(p.storage, rows * out_stride, 7);
    const kvplan_packed_linear call{x.data(), packed.data(), bias.data(), out.data(), x_stride, out_stride,
                                    rows, p.inputs, p.outputs, p.activation, p.storage, nullptr, nullptr, nullptr,
                                    nullptr};
    worst.expect(kvplan_multiply_packed(&call, threads) == 0);
    for (int64_t i = 0; i < rows * out_stride; ++i) {
      const int64_t row = i / out_stride, column = i % out_stride;
      const double want = column < width ? followed(p, sums, row, column) : 7;
      worst.see(out.at(i), want, p.storage, column < width ? 2e-6 * std::sqrt(p.inputs) : 0);
      if (rows == 1) first_row.push_back(out.at(i));
      if (row == 0) worst.expect(out.at(i) == first_row[static_cast<size_t>(column)]);
    }
  }
}

}  // namespace
