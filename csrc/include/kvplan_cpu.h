// The CPU kernels' interface: plain C, raw pointers, strides in elements.
//
// Each pointer is preceded by the shape it is read with. Tensors of rows have their last dimension contiguous and a
// row stride of their own, so views into a fused projection need no copy. Functions that take `storage` read and write
// float32 (KVPLAN_FLOAT32) or bfloat16 (KVPLAN_BFLOAT16) and compute in float32. `threads` is the most threads to use;
// small inputs use one. Nothing here allocates except kvplan_paged_attention's scratch, which is kept per calling thread.
#pragma once

#include <stdint.h>

#include "kvplan_lora.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// For the KV pool alone are FLOAT8_E4M3, written saturating at 448, read as it is, without a scale, and INT8: integers
// from -127 to 127 with a float32 scale for each token and KV head.
enum kvplan_storage { KVPLAN_FLOAT32 = 0, KVPLAN_BFLOAT16 = 1, KVPLAN_FLOAT8_E4M3 = 2, KVPLAN_INT8 = 3 };

enum kvplan_status {
  KVPLAN_OK = 0,
  KVPLAN_BAD_INDEX = 1,   // a slot, block, position or length outside its tensor: nothing more was written
  KVPLAN_NO_MEMORY = 2,   // the scratch could not be allocated
};

// Float lanes per vector of this build: 16 (AVX-512), 8 (AVX2) or 4.
int kvplan_lanes(void);

// Bytes of the struct of this name as the library was compiled, 0 for a name that is none. A caller that declares the
// structs in another language compares its own.
int64_t kvplan_structure_bytes(const char* name);

// Whether products with packed bfloat16 weights run in AMX's tiles from now on: `wanted` (-1: as before, at first so),
// where the kernels were compiled for them, the system permits them and they give what plain loops give. Not while
// products run.
int kvplan_use_tiles(int wanted);

// One layer of one step.
typedef struct kvplan_attention {
  // query [T, num_heads, head_size] and out [T, num_heads, value_size], of `storage`
  const void* query;
  void* out;
  int64_t query_row_stride, query_head_stride, out_row_stride, out_head_stride;
  // keys [num_blocks, num_kv_heads, block_size, head_size] and values [num_blocks, num_kv_heads, block_size, value_size]
  // of this layer, of `kv_storage`; a head's keys are contiguous, heads are block_size * head_size apart, blocks
  // block_stride apart. A token's value is value_stride behind the last one's, a head's block_size as many
  const void* keys;
  const void* values;
  int64_t block_stride, num_blocks;
  // [num_sequences, >= ceil(max seq_len / block_size)]
  const int32_t* block_tables;
  int64_t block_table_stride, block_table_width;
  // the blocks of the values where they lie in others than the keys, shaped and strided as block_tables; NULL: the same
  const int32_t* value_tables;
  // [num_sequences]: tokens in the cache, new ones included
  const int32_t* seq_lens;
  // [num_sequences + 1]: rows of query and out; the last is at most num_tokens
  const int32_t* query_starts;
  int64_t num_sequences, num_tokens;
  int64_t num_heads, num_kv_heads, head_size, block_size;
  int64_t window;  // positions that a token sees, itself included; 0: all
  float scale;
  float softcap;  // 0: none
  // [num_heads]: a logit for each head that takes its share of the softmax and has no value; NULL: none
  const float* sinks;
  int32_t storage, kv_storage;
  const float* slopes;  // [num_heads]: times how far a key lies behind, taken from its score (ALiBi); null: none
  // value_stride: value_size, or head_size where values are the beginnings of the keys (latent attention)
  int64_t value_size, value_stride;
  // [num_tokens, chosen_stride]: the positions that each query token sees, ascending, min(chosen_stride, its position + 1)
  // of them; null: all up to its own. For one KV head, without a window, slopes or value_tables
  const int32_t* chosen;
  int64_t chosen_stride;
  // of INT8: [num_blocks, num_kv_heads, block_size] each, a block's contiguous, blocks as far apart as those of the
  // keys (block_stride / 4 floats); else null. Not for chosen tokens
  const float* key_scales;
  const float* value_scales;
} kvplan_attention;

// Causal attention over the paged pool, prefill and decode rows in any mix (attention/backend.py has the definition).
// Decoding sequences whose tables begin with the same blocks are served by one pass over these.
int kvplan_paged_attention(const kvplan_attention* args, int threads);

// Cached tokens of a KV head that this call reads for several sequences at once and not for each: the sum over groups of
// (members - 1) * shared tokens. -1 where the call would be refused.
int64_t kvplan_tokens_read_once(const kvplan_attention* args);

// Which tokens each query token attends to: those with the largest sums over the index's heads of
// weight * max(0, query . key).
typedef struct kvplan_choice {
  // [num_tokens, num_heads * head_size], of `storage`
  const void* query;
  // [num_tokens, num_heads], of `storage`
  const void* weights;
  int64_t query_row_stride, weight_row_stride;
  // [num_blocks, block_size, head_size] of this layer, of `kv_storage`
  const void* keys;
  int64_t block_stride, num_blocks;
  // as in kvplan_attention
  const int32_t* block_tables;
  int64_t block_table_stride, block_table_width;
  const int32_t* seq_lens;
  const int32_t* query_starts;
  int64_t num_sequences, num_tokens;
  int64_t num_heads, head_size, block_size;
  // [num_tokens, top_k]: ascending; a token with no more than top_k before it and its own takes them all
  int32_t* chosen;
  int64_t top_k;
  int32_t storage, kv_storage;
} kvplan_choice;

int kvplan_choose_tokens(const kvplan_choice* args, int threads);

typedef struct kvplan_kv_write {
  // [num_tokens, num_kv_heads, head_size], of `storage`
  const void* key;
  // [num_tokens, num_kv_heads, value_size]; NULL: values are the beginnings of the keys, written with them
  const void* value;
  int64_t key_row_stride, key_head_stride, value_row_stride, value_head_stride;
  // as in kvplan_attention
  void* keys;
  void* values;
  int64_t block_stride, num_blocks;
  // [num_tokens]: block * block_size + offset, or -1
  const int64_t* slots;
  // the same of the values, where they lie in other blocks; NULL: the same. Both are -1 or neither
  const int64_t* value_slots;
  int64_t num_tokens, num_kv_heads, head_size, block_size;
  int32_t storage, kv_storage;
  int64_t value_size;  // values of a head are contiguous
  // as in kvplan_attention
  float* key_scales;
  float* value_scales;
} kvplan_kv_write;

// keys[slot], values[slot] = key, value for every token whose slot is not negative. INT8: a head's scale is its largest
// magnitude / 127, its integers are the values / scale, rounded to nearest, ties to even; all 0 where the scale is 0, and
// where a value is not finite, which makes the scale a NaN.
int kvplan_write_kv(const kvplan_kv_write* args, int threads);

// dst block pairs[i][1] = src block pairs[i][0], whole blocks of block_bytes.
int kvplan_copy_blocks(
    // [src_blocks, block_bytes]
    const void* src, int64_t src_blocks,
    // [dst_blocks, block_bytes]
    void* dst, int64_t dst_blocks,
    // [num_pairs, 2]
    const int64_t* pairs, int64_t num_pairs, int64_t block_bytes, int threads);

// One normalisation over rows: with delta, residual += delta first and x is the residual. With `heads` above 1 so many
// rows in a row, a token's heads, lie side by side, and the strides are from token to token.
typedef struct kvplan_norm {
  // [rows, width]; NULL: no addition
  const void* delta;
  // [rows, width]; written when delta is given
  void* x;
  // [width]
  const void* weight;
  // [width]; NULL for kvplan_rms_norm
  const void* bias;
  // [rows, width]; may be x or delta
  void* out;
  int64_t rows, width;
  int64_t delta_stride, x_stride, out_stride;
  float eps;
  int32_t storage;
  int64_t heads;
} kvplan_norm;

int kvplan_rms_norm(const kvplan_norm* args, int threads);
int kvplan_layer_norm(const kvplan_norm* args, int threads);

// Rotates the first `rotary` values of each head, halves against each other.
int kvplan_rope(
    // [tokens, heads, head_size]
    void* x, int64_t row_stride, int64_t head_stride,
    // [tokens]
    const int64_t* positions,
    // [table_rows, rotary] float32: rotary / 2 cosines, rotary / 2 sines
    const float* cos_sin, int64_t table_rows, int64_t tokens, int64_t heads, int64_t rotary, int storage, int threads);

// out = silu(gate) * up.
int kvplan_silu_and_mul(
    // [rows, 2 * width]: gate beside up
    const void* gate_up, int64_t in_stride,
    // [rows, width]; may be the gate's own memory
    void* out, int64_t out_stride, int64_t rows, int64_t width, int storage, int threads);

// x = gelu(x), by the tanh formula or by the error function.
int kvplan_gelu_tanh(
    // [rows, width]
    void* x, int64_t stride, int64_t rows, int64_t width, int storage, int threads);
int kvplan_gelu_erf(
    // [rows, width]
    void* x, int64_t stride, int64_t rows, int64_t width, int storage, int threads);

// out[row] = the lowest index of the row's largest value; a NaN counts as largest.
int kvplan_argmax_rows(
    // [rows, width]
    const void* x, int64_t stride,
    // [rows]
    int64_t* out, int64_t rows, int64_t width, int storage, int threads);

// out = x @ weight^T + bias, for few rows (a decode step's batch): the weight is read once and never packed.
int kvplan_linear(
    // [rows, inputs]
    const void* x, int64_t x_stride,
    // [outputs, inputs], contiguous
    const void* weight,
    // [outputs], or null
    const void* bias,
    // [rows, outputs]
    void* out, int64_t out_stride, int64_t rows, int64_t inputs, int64_t outputs, int storage, int threads);

// What follows a product: nothing, GELU by the tanh formula or the error function, silu(first half) * second half, the
// same with GELU by the tanh formula, gpt-oss's gate (with the limit L: g = min(first, L), g sigmoid(1.702 g) (second
// within -L and L, plus 1)), or max(x, 0)^2. A limit is known to mixtures alone.
enum kvplan_activation {
  KVPLAN_NO_ACTIVATION = 0,
  KVPLAN_GELU_TANH = 1,
  KVPLAN_GELU_ERF = 2,
  KVPLAN_SILU_AND_MUL = 3,
  KVPLAN_GELU_TANH_AND_MUL = 4,
  KVPLAN_SWIGLU_OAI = 5,
  KVPLAN_RELU_SQUARED = 6,
};

// How the scales and minimums of a quantised weight are stored.
// E8M0: a byte e for 2^(e - 127), without minimums. SCALED_INT8: an int8, times a float16 that a block of inputs shares.
enum kvplan_scale_storage {
  KVPLAN_SCALE_FLOAT32 = 0,
  KVPLAN_SCALE_FLOAT16 = 1,
  KVPLAN_SCALE_E8M0 = 2,
  KVPLAN_SCALE_SCALED_INT8 = 3,
};

// A quantised weight: element [o, k] is value(code[o, k]) * scale[o, g] + minimum[o, g], where g is the group of input k.
typedef struct kvplan_weight_format {
  // [2^bits]: what each code stands for; of 8 bits numbers that bfloat16 has, the second half being the first with the
  // other sign; NULL: code - zero
  const float* code_book;
  // [inputs]: the input of x that belongs to each input of the weight, so that groups lie together; NULL: its own
  const int32_t* input_order;
  int32_t bits;           // 4, 6 (without a code book) or 8
  int32_t zero;
  int32_t group;          // inputs that share a scale: a multiple of 8, of 6 bits one of 16
  int32_t scale_storage;  // of scales and minimums
  int32_t has_minimum;
  int32_t block;          // of SCALED_INT8: inputs that share a float16, 2^n whole groups; 0 elsewhere
  // x is rounded to integers of 8 bits, a group's by its largest magnitude / 127, and multiplied with the codes as they
  // are; not with a code book. A row with a value that is not finite gives no numbers
  int32_t rounds_inputs;
} kvplan_weight_format;

// One product with a packed weight: out = activation(x @ weight^T + bias + what adapters add).
typedef struct kvplan_packed_linear {
  // [rows, inputs]
  const void* x;
  // as kvplan_pack_weight made it
  const void* packed;
  // [outputs], or null
  const void* bias;
  // [rows, outputs]; [rows, outputs / 2] for a gated activation
  void* out;
  int64_t x_stride, out_stride;
  int64_t rows, inputs, outputs;
  int32_t activation;
  int32_t storage;
  // of a weight that kvplan_pack_quantised packed; NULL: one of `storage`
  const kvplan_weight_format* format;
  // adapters of this weight; NULL: none
  const kvplan_lora_slots* slots;
  // rows that they correct; NULL: none
  const kvplan_lora_rows* corrected;
  // the rows of the weight below these, in another format: their outputs follow these in each row of out. NULL: none.
  // Of these only weight, bias, inputs and outputs are read; nothing follows such products, and nothing corrects them.
  const struct kvplan_packed_linear* next;
} kvplan_packed_linear;

// Rows that a packed weight of so many has: whole panels.
int64_t kvplan_packed_outputs(int64_t outputs);

// Inputs that it has: bfloat16 goes in pairs.
int64_t kvplan_packed_inputs(int64_t inputs, int storage);

// Packs for kvplan_multiply_packed; `gated` for activations of two halves, where outputs / 2 must fill whole panels.
int kvplan_pack_weight(
    // [outputs, inputs], contiguous
    const void* weight,
    // [kvplan_packed_outputs(outputs), kvplan_packed_inputs(inputs, storage)] elements
    void* packed, int64_t inputs, int64_t outputs, int gated, int storage, int threads);

int kvplan_multiply_packed(const kvplan_packed_linear* args, int threads);

// out += what adapters add, for a product that was computed elsewhere: `packed` and what follows the product are not read.
int kvplan_correct(const kvplan_packed_linear* args, int threads);

// A product for each head: out[row][head] = x[row][head] @ weight[head]^T.
typedef struct kvplan_head_products {
  // [rows, heads, inputs]
  const void* x;
  // [heads], each as kvplan_pack_weight made it of [outputs, inputs]
  const void* packed;
  // [rows, heads, outputs]
  void* out;
  int64_t x_row_stride, x_head_stride, out_row_stride, out_head_stride;
  int64_t rows, heads, inputs, outputs;
  int32_t storage;
} kvplan_head_products;

int kvplan_multiply_heads(const kvplan_head_products* args, int threads);

// Bytes of a quantised weight in panels; of a gated one each half is filled up to whole panels.
int64_t kvplan_quantised_bytes(const kvplan_weight_format* format, int64_t inputs, int64_t outputs, int gated);

// Packs a quantised weight: for kvplan_multiply_packed with `gated` as for kvplan_pack_weight, or for an expert.
int kvplan_pack_quantised(
    const kvplan_weight_format* format,
    // [outputs, inputs * bits / 8]: of 4 bits, an even input in the lower half of a byte and the next in the upper; of 6
    // bits so the lower 4 of all inputs, and behind them the upper 2 of four inputs in a byte, the first lowest
    const uint8_t* codes,
    // [outputs, groups], of the format's scale_storage
    const void* scales,
    // the same; NULL without minimums
    const void* minimums,
    // [outputs, blocks] float16, [outputs, blocks, 2] with minimums: what the int8 of a block are multiplied with; or NULL
    const void* block_scales,
    // [kvplan_quantised_bytes(format, inputs, outputs, gated)]
    void* packed, int64_t inputs, int64_t outputs, int gated, int threads);

// out[i] = row indices[i] of a quantised weight (packed, not gated), in `storage`.
int kvplan_unpack_quantised_rows(
    const kvplan_weight_format* format,
    // as kvplan_pack_quantised made it
    const void* packed,
    // [rows], each below outputs
    const int64_t* indices,
    // [rows, inputs]
    void* out, int64_t out_stride, int64_t rows, int64_t inputs, int64_t outputs, int storage, int threads);

// What a router's logits become: softmax over all experts, sigmoid of each, softmax over the chosen ones, or Phi-MoE's
// choice (a softmax for each chosen expert over those whose logits come close to it, earlier chosen ones left out).
enum kvplan_scoring {
  KVPLAN_SOFTMAX = 0,
  KVPLAN_SIGMOID = 1,
  KVPLAN_SOFTMAX_OF_TOP = 2,
  KVPLAN_SPARSE_MIXER = 3,
};

// The score of a group of experts: its best expert's, or the sum of its best two.
enum kvplan_group_scoring { KVPLAN_GROUP_MAX = 0, KVPLAN_GROUP_TOP2_SUM = 1 };

enum { KVPLAN_MOST_GROUPS = 64 };

// Which experts a row takes, and how much of each.
typedef struct kvplan_router {
  // [num_experts, hidden], packed; with shared_gate one more row
  const void* packed;
  // [num_experts], or null
  const void* bias;
  // [num_experts] float32, or null: added to the scores for the choice alone
  const float* correction;
  int64_t num_experts, top_k;
  int64_t num_groups, top_groups;  // the choice is among the experts of the best groups; 1, 1: no groups
  float scale;                     // of the weights
  float jitter;                    // of KVPLAN_SPARSE_MIXER: logits further from the best than twice this are left out
  int32_t scoring, group_scoring;
  int32_t normalised;              // the weights are divided by their sum
  int32_t shared_gate;             // the shared expert's weight is the sigmoid of the last row's logit; otherwise 1
} kvplan_router;

// MLPs of one size, one after the other.
typedef struct kvplan_experts {
  // [count], each as kvplan_pack_expert, or kvplan_pack_quantised, made it: [size, hidden], or [2 * size, hidden] for a
  // gated activation
  const void* up;
  // [count, size], or [count, 2 * size]; or null
  const void* up_bias;
  // [count], each [hidden, size]
  const void* down;
  // [count, hidden], or null
  const void* down_bias;
  int64_t count, size;
  float limit;  // of KVPLAN_SWIGLU_OAI
  int32_t activation;
  // of quantised weights, with an input_order [count, inputs] or none; NULL: they are of the mixture's `storage`
  const kvplan_weight_format* up_format;
  const kvplan_weight_format* down_format;
} kvplan_experts;

// A mixture of experts over some rows: out = sum of each row's weights * expert(x), and the shared expert's.
typedef struct kvplan_mixture {
  kvplan_router router;
  kvplan_experts experts;  // of the router's, those from first_expert on; rows' choices of others add nothing
  kvplan_experts shared;   // count 0 or 1
  int64_t first_expert;
  // [rows, hidden]
  const void* x;
  // [rows, hidden]; not x
  void* out;
  int64_t x_stride, out_stride;
  int64_t rows, hidden;
  // [rows, top_k]: what the router chose, best first
  int32_t* expert_ids;
  float* expert_weights;
  // [rows * (top_k * experts.size + shared.size)]: memory for what lies between the products
  void* inner;
  int32_t storage;
} kvplan_mixture;

// Elements of an expert's packed weight.
int64_t kvplan_packed_expert_elements(int64_t inputs, int64_t outputs, int activation, int storage);

// Packs one weight [outputs, inputs] of an expert; the two halves of a gated one are filled up to whole panels each.
int kvplan_pack_expert(
    // [outputs, inputs], contiguous
    const void* weight,
    // [kvplan_packed_expert_elements(inputs, outputs, activation, storage)]
    void* packed, int64_t inputs, int64_t outputs, int activation, int storage, int threads);

// The choice alone: expert_ids and expert_weights.
int kvplan_route(const kvplan_mixture* args, int threads);

// The choice and the experts. Experts that no row takes are not read. Sums run over a row's experts in the order of
// their numbers, the shared one last, so a row's result does not depend on its batch.
int kvplan_run_mixture(const kvplan_mixture* args, int threads);

// A decoder's layer. Of the products and norms only what belongs to the weights is set; next_norm is the one before the
// next layer's attention, or the model's last. A norm with a bias is a LayerNorm, one without an RMSNorm.
typedef struct kvplan_layer {
  kvplan_packed_linear qkv, output, up, down;
  kvplan_norm mlp_norm, next_norm;
  // of each query and each key before the rotation; without a weight: none
  kvplan_norm query_norm, key_norm;
  // of what attention and the MLP add, before they add it; without a weight: none
  kvplan_norm attention_post_norm, mlp_post_norm;
  // in the place of up and down; its rows and their memory are not set. NULL: an MLP
  const kvplan_mixture* mixture;
  // which of the step's places, and where its keys and values lie, in bytes from those of the place
  int64_t place, key_offset, value_offset;
} kvplan_layer;

// What is equal in a step for all layers whose tokens lie in the same blocks and that attend alike.
typedef struct kvplan_layer_place {
  // the query lies at the beginning of `qkv`, and write's rows behind it
  const kvplan_attention* attention;
  const kvplan_kv_write* write;
  // [rope_rows, rotary], or null for layers without rotary positions
  const float* cos_sin;
  int64_t rope_rows, rotary;
} kvplan_layer_place;

// All layers of one step over T tokens. Buffers are dense and of the attention's `storage`.
typedef struct kvplan_layers {
  // [num_layers]
  const kvplan_layer* layers;
  int64_t num_layers;
  const kvplan_layer_place* places;
  // [T, hidden size]: the residual stream, its normalised copy (of the first layer's norm at the start, of the last
  // norm at the end), what a block adds
  void* hidden;
  void* normed;
  void* delta;
  // [T, num_heads + 2 * num_kv_heads, head_size] of each layer: queries, keys, values
  void* qkv;
  // [T, inputs of `down`]
  void* inner;
  // a mixture's memory, as its fields of these names say; never needed together with qkv or inner
  int32_t* expert_ids;
  float* expert_weights;
  void* expert_inner;
  // [T]
  const int64_t* positions;
  // Null: every row goes through all of the last layer. Otherwise, behind the last layer's keys and values, only some
  // rows do, and `normed` holds these at the end: the attention over them, whose query [R, num_heads, head_size] is
  // memory for their queries, next to `out`; its num_tokens is R
  const kvplan_attention* last_attention;
  // [R], below T
  const int64_t* last_rows;
  // [R, hidden size]: memory for their residual stream
  void* last_hidden;
  // the rows that adapters correct, among all and among last_rows; NULL: none
  const kvplan_lora_rows* corrected;
  const kvplan_lora_rows* last_corrected;
  // [KVPLAN_LAYER_OPERATIONS], or null: the time of each operation is added to its place
  double* operation_seconds;
} kvplan_layers;

// The operations of a layer whose times can be told apart, in the order of operation_seconds.
enum kvplan_layer_operation {
  KVPLAN_QKV,
  KVPLAN_ROPE,
  KVPLAN_WRITE_KV,
  KVPLAN_ATTENTION,
  KVPLAN_OUTPUT,
  KVPLAN_NORMS,
  KVPLAN_UP,
  KVPLAN_DOWN,
  KVPLAN_MIXTURE,
  KVPLAN_LAYER_OPERATIONS
};

int kvplan_run_layers(const kvplan_layers* run, int threads);

// out[i] = row indices[i] of the weight that was packed (not gated): an embedding's look-up.
int kvplan_unpack_rows(
    // as kvplan_pack_weight made it
    const void* packed,
    // [rows], each below outputs
    const int64_t* indices,
    // [rows, inputs]
    void* out, int64_t out_stride, int64_t rows, int64_t inputs, int64_t outputs, int storage, int threads);

// The vector functions by themselves, for tests: y = exp(x), y = tanh(x).
void kvplan_exp(
    // [n]
    const float* x,
    // [n]
    float* y, int64_t n);
void kvplan_tanh(
    // [n]
    const float* x,
    // [n]
    float* y, int64_t n);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
