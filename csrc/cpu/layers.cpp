// All layers of a step in one call: at small batches the calls themselves cost as much as the norms and the attention.
#include "../include/kvplan_cpu.h"

namespace {

int multiply(kvplan_packed_linear product, const void* x, void* out, int64_t rows, int threads) {
  product.x = x;
  product.out = out;
  product.rows = rows;
  product.x_stride = product.inputs;
  product.out_stride = product.activation == KVPLAN_SILU_AND_MUL ? product.outputs / 2 : product.outputs;
  return kvplan_multiply_packed(&product, threads);
}

// hidden += delta, normed = norm(hidden); LayerNorm where there is a bias.
int add_and_normalise(kvplan_norm norm, const kvplan_layers& run, int threads) {
  norm.delta = run.delta;
  norm.x = run.hidden;
  norm.out = run.normed;
  norm.rows = run.attention->num_tokens;
  norm.delta_stride = norm.x_stride = norm.out_stride = norm.width;
  return norm.bias == nullptr ? kvplan_rms_norm(&norm, threads) : kvplan_layer_norm(&norm, threads);
}

int rotate(const kvplan_layers& run, int threads) {
  if (run.cos_sin == nullptr) return KVPLAN_OK;
  const kvplan_attention& attention = *run.attention;
  return kvplan_rope(run.qkv, attention.query_row_stride, attention.query_head_stride, run.positions, run.cos_sin,
                     run.rope_rows, attention.num_tokens, attention.num_heads + attention.num_kv_heads, run.rotary,
                     attention.storage, threads);
}

int write_and_attend(const kvplan_layers& run, int64_t layer, int threads) {
  kvplan_kv_write write = *run.write;
  kvplan_attention attention = *run.attention;
  write.keys = static_cast<char*>(write.keys) + layer * run.kv_layer_bytes;
  write.values = static_cast<char*>(write.values) + layer * run.kv_layer_bytes;
  attention.keys = write.keys;
  attention.values = write.values;
  const int status = kvplan_write_kv(&write, threads);
  return status == KVPLAN_OK ? kvplan_paged_attention(&attention, threads) : status;
}

int run_layer(const kvplan_layers& run, int64_t index, int threads) {
  const kvplan_layer& layer = run.layers[index];
  const int64_t rows = run.attention->num_tokens;
  int status = multiply(layer.qkv, run.normed, run.qkv, rows, threads);
  if (status == KVPLAN_OK) status = rotate(run, threads);
  if (status == KVPLAN_OK) status = write_and_attend(run, index, threads);
  if (status == KVPLAN_OK) status = multiply(layer.output, run.attention->out, run.delta, rows, threads);
  if (status == KVPLAN_OK) status = add_and_normalise(layer.mlp_norm, run, threads);
  if (status == KVPLAN_OK) status = multiply(layer.up, run.normed, run.inner, rows, threads);
  if (status == KVPLAN_OK) status = multiply(layer.down, run.inner, run.delta, rows, threads);
  return status == KVPLAN_OK ? add_and_normalise(layer.next_norm, run, threads) : status;
}

}  // namespace

int kvplan_run_layers(const kvplan_layers* run, int threads) {
  int status = KVPLAN_OK;
  for (int64_t i = 0; i < run->num_layers && status == KVPLAN_OK; ++i) status = run_layer(*run, i, threads);
  return status;
}
