// Compares the CPU kernels with plain loops in double precision: one line per check, exit status 1 when one is wrong.
//
// Needs nothing but the kernels, so that it runs where Python's libraries do not: emulated, under sanitizers.
#include "cross_check.h"
#include "cross_check_attention.h"
#include "cross_check_lora.h"
#include "cross_check_products.h"
#include "cross_check_quantised.h"
#include "cross_check_states.h"

namespace {

void check_unpacked_rows_and_linear(int storage) {
  Worst worst(std::string("rows of a packed weight, product without packing, ") + kStorageNames[storage]);
  Random random{2};
  const int64_t inputs = 77, outputs = 150, rows = 7;
  Tensor weight(storage, outputs * inputs, random, 1), packed(storage, packed_elements(outputs, inputs, storage));
  kvplan_pack_weight(weight.data(), packed.data(), inputs, outputs, 0, storage, threads);
  std::vector<int64_t> indices{149, 0, 16, 63, 64, 5, 5};
  Tensor out(storage, rows * inputs), x(storage, rows * (inputs + 2), random, 1), bias(storage, outputs, random, 1);
  worst.expect(kvplan_unpack_rows(packed.data(), indices.data(), out.data(), inputs, rows, inputs, outputs, storage,
                                  threads) == 0);
  for (int64_t i = 0; i < rows * inputs; ++i)
    worst.expect(out.at(i) == weight.at(indices[static_cast<size_t>(i / inputs)] * inputs + i % inputs));
  Tensor product(storage, rows * outputs);
  kvplan_linear(x.data(), inputs + 2, weight.data(), bias.data(), product.data(), outputs, rows, inputs, outputs,
                storage, threads);
  const std::vector<double> want =
      plain_product({inputs, outputs, KVPLAN_NO_ACTIVATION, storage}, x, inputs + 2, weight, bias);
  for (int64_t i = 0; i < rows * outputs; ++i)
    worst.see(product.at(i), want[static_cast<size_t>(i)], storage, 2e-5);
}

// Numbers midway between two fp8 values and beside it, beyond all, NaN and infinities; slot -1 writes nothing.
void check_write(int storage, int kv_storage) {
  Worst worst(std::string("cache writes, ") + kStorageNames[storage] + " into " + kStorageNames[kv_storage]);
  const int64_t head_size = 22, heads = 3, block_size = 16, num_blocks = 3, tokens = 30, row = heads * head_size + 1;
  Random random{4};
  Tensor key(storage, tokens * row, random, 500), value(storage, tokens * row, random, 1e-2);
  for (int code = 0; code < 252; ++code) {
    const double middle = (fp8_value(code / 2) + fp8_value(code / 2 + 1)) / 2;
    if (std::isfinite(middle)) key.put(code, code % 2 ? -middle : std::nextafter(static_cast<float>(middle), 1e9f));
  }
  const double special[] = {NAN, INFINITY, -INFINITY, 464, 1e30, -0.0, 1e-30};
  for (int64_t i = 0; i < 7; ++i) value.put(70 + i, special[i]);
  const int64_t layer = heads * block_size * head_size;
  Tensor pool(kv_storage, num_blocks * 2 * layer, 7);
  std::vector<double> want(static_cast<size_t>(pool.count()), 7);
  std::vector<int64_t> slots;
  for (int64_t token = 0; token < tokens; ++token) {
    slots.push_back(token % 7 == 6 ? -1 : (token * 11 + 5) % (num_blocks * block_size));
    Tensor one(kv_storage, 1);
    for (int64_t i = 0; i < 2 * heads * head_size && slots.back() >= 0; ++i) {
      const int64_t at = i % (heads * head_size), head = at / head_size, slot = slots.back();
      one.put(0, (i < heads * head_size ? key : value).at(token * row + at));
      want[static_cast<size_t>((slot / block_size * 2 + (i >= heads * head_size)) * layer +
                               (head * block_size + slot % block_size) * head_size + at % head_size)] = one.at(0);
    }
  }
  kvplan_kv_write call{key.data(), value.data(), row, head_size, row, head_size, pool.data(), pool.from(layer),
                       2 * layer, num_blocks, slots.data(), nullptr, tokens, heads, head_size, block_size, storage,
                       kv_storage, head_size, nullptr, nullptr};
  worst.expect(kvplan_write_kv(&call, threads) == KVPLAN_OK);
  for (int64_t i = 0; i < pool.count(); ++i) worst.see(pool.at(i), want[static_cast<size_t>(i)], KVPLAN_FLOAT32, 0);
  slots[3] = num_blocks * block_size;
  worst.expect(kvplan_write_kv(&call, threads) == KVPLAN_BAD_INDEX);
}

// Integers and their scale as the definition has them, one row at a time: ties, zeros, what is not finite.
void check_integer_write(int storage) {
  Worst worst(std::string("cache writes, ") + kStorageNames[storage] + " into int8");
  const int64_t head_size = 22, heads = 3, block_size = 16, num_blocks = 3, tokens = 30, row = heads * head_size + 1;
  Random random{4};
  Tensor key(storage, tokens * row, random, 500), value(storage, tokens * row, random, 1e-2);
  for (int64_t i = 0; i < head_size; ++i) key.put(i, i == 0 ? 127 : static_cast<double>(i) - 10.5);
  for (int64_t i = 0; i < head_size; ++i) value.put(row + i, 0);
  const double special[] = {NAN, INFINITY, -INFINITY, 1e30, -0.0, 1e-30};
  for (int64_t i = 0; i < 6; ++i) value.put((2 + i) * row + 5, special[i]);
  const int64_t layer = heads * block_size * head_size, scale_block = layer / 2;
  Tensor pool(KVPLAN_INT8, num_blocks * 2 * layer, 7);
  std::vector<float> scales(static_cast<size_t>(num_blocks * scale_block), 7);
  std::vector<int64_t> slots;
  for (int64_t token = 0; token < tokens; ++token)
    slots.push_back(token % 7 == 6 ? -1 : (token * 11 + 5) % (num_blocks * block_size));
  kvplan_kv_write call{key.data(), value.data(), row, head_size, row, head_size, pool.data(), pool.from(layer),
                       2 * layer, num_blocks, slots.data(), nullptr, tokens, heads, head_size, block_size, storage,
                       KVPLAN_INT8, head_size, scales.data(), scales.data() + heads * block_size};
  worst.expect(kvplan_write_kv(&call, threads) == KVPLAN_OK);
  int64_t written = 0;
  for (int64_t i = 0; i < tokens * 2 * heads; ++i) {
    const int64_t token = i / (2 * heads), slot = slots[static_cast<size_t>(token)];
    if (slot < 0) continue;
    const Tensor& rows = i / heads % 2 == 0 ? key : value;
    const int64_t from = token * row + i % heads * head_size, place = i % heads * block_size + slot % block_size;
    const int64_t side = i / heads % 2, to = (slot / block_size * 2 + side) * layer + place * head_size;
    float largest = 0;
    bool finite = true;
    for (int64_t k = 0; k < head_size; ++k) {
      finite = finite && std::isfinite(rows.at(from + k));
      largest = std::max(largest, static_cast<float>(std::fabs(rows.at(from + k))));
    }
    const float scale = finite ? largest / 127 : NAN;
    const size_t of = static_cast<size_t>(slot / block_size * scale_block + side * heads * block_size + place);
    worst.see(static_cast<double>(scales[of]), static_cast<double>(scale), KVPLAN_FLOAT32, 0);
    for (int64_t k = 0; k < head_size; ++k)
      worst.see(pool.at(to + k), scale > 0 ? std::nearbyint(static_cast<float>(rows.at(from + k)) / scale) : 0,
                KVPLAN_FLOAT32, 0);
    written += head_size;
  }
  int64_t left = 0;
  for (int64_t i = 0; i < pool.count(); ++i) left += pool.at(i) == 7;
  worst.expect(left >= pool.count() - written);
}

void check_norm(bool centred, bool adds, int storage) {
  Worst worst(std::string(centred ? "LayerNorm" : "RMSNorm") + (adds ? " behind an addition, " : ", ") +
              kStorageNames[storage]);
  for (int64_t width : {3, 64, 77, 576}) {
    const int64_t rows = 37, stride = width + 2;
    Random random{5};
    Tensor x(storage, rows * stride, random, 3), delta(storage, rows * width, random, 1), out(storage, rows * width);
    Tensor weight(storage, width, random, 2), bias(storage, width, random, 1), before = x;
    const kvplan_norm call{adds ? delta.data() : nullptr, x.data(), weight.data(), centred ? bias.data() : nullptr,
                           out.data(), rows, width, width, stride, width, 1e-5f, storage, 1};
    worst.expect((centred ? kvplan_layer_norm : kvplan_rms_norm)(&call, threads) == KVPLAN_OK);
    for (int64_t row = 0; row < rows; ++row) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < width; ++i) {
        const int64_t at = row * stride + i;
        worst.see(x.at(at), before.at(at) + (adds ? delta.at(row * width + i) : 0), storage, 1e-6);
        mean += centred ? x.at(at) / static_cast<double>(width) : 0;
      }
      for (int64_t i = 0; i < width; ++i) variance += std::pow(x.at(row * stride + i) - mean, 2) / width;
      for (int64_t i = 0; i < width; ++i)
        worst.see(out.at(row * width + i), (x.at(row * stride + i) - mean) / std::sqrt(variance + 1e-5) * weight.at(i) +
                  (centred ? bias.at(i) : 0), storage, 1e-5);
    }
  }
}

void check_rope(int storage) {
  Worst worst(std::string("rotary positions, ") + kStorageNames[storage]);
  const int64_t heads = 3, head_size = 80, tokens = 150, row = heads * head_size + 6, table_rows = 9;
  for (int64_t rotary : {54, 80}) {
    Random random{6};
    Tensor x(storage, tokens * row, random, 2), before = x, table(KVPLAN_FLOAT32, table_rows * rotary, random, 1);
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < tokens; ++i) positions.push_back((i * 5 + 8) % table_rows);
    worst.expect(kvplan_rope(x.data(), row, head_size, positions.data(), static_cast<float*>(table.data()), table_rows,
                             tokens, heads, rotary, storage, threads) == KVPLAN_OK);
    for (int64_t i = 0; i < tokens * row; ++i) {
      const int64_t within = i % row % head_size, half = rotary / 2, at = within % half;
      const bool turned = i % row < heads * head_size && within < rotary, second = within >= half;
      const int64_t pair = positions[static_cast<size_t>(i / row)] * rotary + at;
      const double other = turned ? before.at(second ? i - half : i + half) : 0;
      worst.see(x.at(i), turned ? before.at(i) * table.at(pair) + (second ? other : -other) * table.at(pair + half)
                                : before.at(i), storage, turned ? 1e-6 : 0);
    }
    positions[5] = table_rows;
    worst.expect(kvplan_rope(x.data(), row, head_size, positions.data(), static_cast<float*>(table.data()), table_rows,
                             tokens, heads, rotary, storage, threads) == KVPLAN_BAD_INDEX);
  }
}

void check_activations(int storage) {
  Worst gated(std::string("silu and mul, ") + kStorageNames[storage]);
  Worst by_tanh(std::string("GELU by tanh, ") + kStorageNames[storage]);
  Worst by_erf(std::string("GELU by erf, ") + kStorageNames[storage]);
  for (int64_t width : {5, 64, 4100}) {
    Random random{7};
    Tensor x(storage, 3 * 2 * width, random, 20), y = x, z = x, out(storage, 3 * width);
    kvplan_silu_and_mul(x.data(), 2 * width, out.data(), width, 3, width, storage, threads);
    kvplan_gelu_tanh(y.data(), 2 * width, 3, 2 * width, storage, threads);
    kvplan_gelu_erf(z.data(), 2 * width, 3, 2 * width, storage, threads);
    for (int64_t i = 0; i < 6 * width; ++i) {
      if (i % (2 * width) < width)
        gated.see(out.at(i / 2 / width * width + i % width), silu(x.at(i)) * x.at(i + width), storage, 1e-5);
      by_tanh.see(y.at(i), gelu_tanh(x.at(i)), storage, 2e-6);
      by_erf.see(z.at(i), gelu_erf(x.at(i)), storage, 2e-6);
    }
  }
}

void check_argmax(int storage) {
  Worst worst(std::string("argmax, ") + kStorageNames[storage]);
  for (int64_t width : {1, 3, 16, 50, 2003}) {
    const int64_t rows = 40;
    Random random{8};
    Tensor x(storage, rows * width);
    for (int64_t i = 0; i < rows * width; ++i) x.put(i, static_cast<double>(random.bits() % 23) - 30);  // many ties
    for (int64_t row = 0; row < rows; row += 5) x.put(row * width + row % width, row % 2 ? NAN : -INFINITY);
    std::vector<int64_t> found(static_cast<size_t>(rows), -1);
    kvplan_argmax_rows(x.data(), width, found.data(), rows, width, storage, threads);
    for (int64_t row = 0; row < rows; ++row) {
      int64_t best = 0;
      for (int64_t i = 1; i < width; ++i) {
        const double value = x.at(row * width + i), largest = x.at(row * width + best);
        if (!std::isnan(largest) && (std::isnan(value) || value > largest)) best = i;
      }
      worst.expect(found[static_cast<size_t>(row)] == best);
    }
  }
}

void check_storage(int storage) {
  check_product({77, 150, KVPLAN_NO_ACTIVATION, storage}, "product");
  check_product({1024, 40, KVPLAN_NO_ACTIVATION, storage}, "long product");
  check_product({77, 70, KVPLAN_GELU_TANH, storage}, "product with GELU by tanh");
  check_product({77, 70, KVPLAN_GELU_ERF, storage}, "product with GELU by erf");
  check_product({77, 256, KVPLAN_SILU_AND_MUL, storage}, "gated product");
  check_lora(30, 70, KVPLAN_NO_ACTIVATION, storage);
  check_lora(128, 256, KVPLAN_SILU_AND_MUL, storage);
  check_unpacked_rows_and_linear(storage);
  for (int kv_storage : {KVPLAN_FLOAT32, KVPLAN_BFLOAT16, KVPLAN_FLOAT8_E4M3}) check_write(storage, kv_storage);
  check_integer_write(storage);
  for (bool centred : {false, true})
    for (bool adds : {false, true}) check_norm(centred, adds, storage);
  check_rope(storage);
  check_activations(storage);
  check_argmax(storage);
  check_states(storage);
}

}  // namespace

int main() {
  std::printf("%d lanes\n", kvplan_lanes());
  for (int count : {1, 3}) {
    threads = count;
    for (int storage : kStorages) check_storage(storage);
    for (int bits : {4, 6, 8})
      for (bool rounds : {false, true})
        for (int storage : {KVPLAN_FLOAT32, KVPLAN_BFLOAT16}) check_quantised(bits, rounds, storage);
    check_attentions();
  }
  std::printf("%d checks, %d wrong\n", checks, failures);
  return failures > 0;
}
