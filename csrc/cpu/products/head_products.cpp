// One product with a packed weight for each head: latent attention's way into the latent space and out of it.
//
// The heads are independent, so a thread takes one head after the other, and of many rows a chunk after the other that
// stays in the second-level cache (packed_product.h). The sums are those of kvplan_multiply_packed.
#include <vector>

#include "packed/packed_product.h"
#include "../parallel.h"

namespace kvplan {
namespace {

// Rows [begin, end) of one head.
template <class T>
void multiply_head(const kvplan_head_products& args, int64_t head, int64_t begin, int64_t end) {
  static thread_local std::vector<Input<T>> memory;
  const int64_t rows = end - begin, panels = num_panels(args.outputs, false);
  const T* x = static_cast<const T*>(args.x) + begin * args.x_row_stride + head * args.x_head_stride;
  const bool direct = reads_in_place<T>(args.inputs, args.x_row_stride, rows);
  const int64_t x_stride = direct ? args.x_row_stride : copied_stride<T>(args.inputs);
  if (!direct) {
    memory.resize(static_cast<size_t>(rows * x_stride));
    for (int64_t row = 0; row < rows; ++row)
      copy_row(x + row * args.x_row_stride, memory.data() + row * x_stride, args.inputs);
  }
  const T* packed = static_cast<const T*>(args.packed) + head * panels * kPanelOutputs * packed_inputs<T>(args.inputs);
  const PackedProduct<T> product{packed, args.inputs, rows,
                                 direct ? reinterpret_cast<const Input<T>*>(x) : memory.data(), x_stride,
                                 unit_panels<T>(false, rows)};
  T* out = static_cast<T*>(args.out) + begin * args.out_row_stride + head * args.out_head_stride;
  const PanelResult<T, T> result{nullptr, out, args.out_row_stride, args.outputs, KVPLAN_NO_ACTIVATION, 0.0f};
  run_panels(product, 0, panels, false, unit_sums(), result);
}

template <class T>
void multiply_heads(const kvplan_head_products& args, int threads) {
  const int64_t chunks = divided_up(args.rows, chunk_rows<T>(args.inputs));
  for_each_item(args.heads * chunks, threads, [&](int, int64_t item) {
    const int64_t chunk = item % chunks;
    multiply_head<T>(args, item / chunks, args.rows * chunk / chunks, args.rows * (chunk + 1) / chunks);
  });
}

}  // namespace
}  // namespace kvplan

int kvplan_multiply_heads(const kvplan_head_products* args, int threads) {
  const int used = threads > 0 ? threads : 1;
  if (args->storage == KVPLAN_BFLOAT16) {
    kvplan::multiply_heads<kvplan::BFloat16>(*args, used);
  } else {
    kvplan::multiply_heads<float>(*args, used);
  }
  return KVPLAN_OK;
}
