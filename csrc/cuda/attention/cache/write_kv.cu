// Puts new K and V rows into their slots, with rotary embedding of Q and K on the way where the model has one.
#include "write_scaled.cuh"

struct WriteParams {
    // [num_tokens, num_query_heads, HEAD_SIZE]  Scalar, rotated in place; null when there is no rotation
    void* query;
    // [num_tokens, num_kv_heads, HEAD_SIZE]  Scalar, left as it is; rows key_stride elements apart
    const void* key;
    // [num_tokens, num_kv_heads, VALUE_SIZE]  Scalar, rows value_stride elements apart
    const void* value;
    // [num_blocks, block_stride]  Cache, moved to the layer
    void* kv;
    // [num_tokens]  block * BLOCK_SIZE + offset; negative: the token is padding
    const i64* slots;
    // the same of the values; slots again where they lie in the keys' blocks
    const i64* value_slots;
    // [num_tokens]
    const i64* positions;
    // [max positions, ROTARY]  float32: ROTARY / 2 cosines, then as many sines; starts at a multiple of 16 bytes
    const float* cos_sin;
    i64 query_stride;
    i64 key_stride;
    i64 value_stride;
    i64 block_stride;  // elements
    i64 value_offset;  // elements from K to V
    int num_tokens;
    int num_query_heads;  // 0: K and V only
    int num_kv_heads;
    float key_scale;  // stored key = key / key_scale; 1 unless the cache is fp8
    float value_scale;
};

// One thread's part of one Q or K head: read, rotate if it is its lot, write with `factor`.
template <typename Target>
KVPLAN_INLINE void move_part(const Scalar* source, Target* target, const float* cosines, int part, float factor) {
    if (part < HALF_VECTORS) {
        const int start = part * VECTOR;
        Vector first = read_vector(source + start), second = read_vector(source + start + ROTARY / 2);
        rotate(first, second, cosines, start);
        write_vector(target + start, first, factor);
        write_vector(target + start + ROTARY / 2, second, factor);
    } else {
        const int start = (part + HALF_VECTORS) * VECTOR;
        write_vector(target + start, read_vector(source + start), factor);
    }
}

KVPLAN_INLINE const float* cosines_of(const WriteParams& params, int token) {
    return ROTARY > 0 ? params.cos_sin + params.positions[token] * ROTARY : nullptr;
}

// Rotates the heads of one token in place; what does not rotate stays as it is.
KVPLAN_INLINE void rotate_query(const WriteParams& params, int token, const float* cosines) {
    constexpr int PARTS = larger(1, HALF_VECTORS);
    Scalar* heads = static_cast<Scalar*>(params.query) + token * params.query_stride;
    for (int i = int(threadIdx.x); i < params.num_query_heads * HALF_VECTORS; i += THREADS) {
        Scalar* head = heads + i / PARTS * HEAD_SIZE;
        move_part(head, head, cosines, i % PARTS, 1.0f);
    }
}

// grid (num_tokens), block THREADS. Rotation alone, of queries or keys.
KVPLAN_KERNEL(rotate_heads, WriteParams, THREADS) {
    const int token = int(blockIdx.x);
    rotate_query(params, token, cosines_of(params, token));
}

// Keys and values of one token into a cache of integers.
KVPLAN_INLINE void write_integers(const WriteParams& params, int token, i64 block, int offset, const float* cosines) {
    const i64 value_slot = params.value_slots[token];
    Cache* pages = static_cast<Cache*>(params.kv);
    quantise_heads<HEAD_SIZE, HALF_VECTORS>(static_cast<const Scalar*>(params.key) + token * params.key_stride,
                                            pages + block * params.block_stride, offset, params.num_kv_heads, cosines);
    quantise_heads<VALUE_SIZE, 0>(static_cast<const Scalar*>(params.value) + token * params.value_stride,
                                  pages + params.value_offset + value_slot / BLOCK_SIZE * params.block_stride,
                                  int(value_slot % BLOCK_SIZE), params.num_kv_heads, cosines);
}

// grid (num_tokens), block THREADS.
KVPLAN_KERNEL(write_kv, WriteParams, THREADS) {
    const int token = int(blockIdx.x);
    const float* cosines = cosines_of(params, token);
    rotate_query(params, token, cosines);
    const i64 slot = params.slots[token];
    if (slot < 0) return;
    const i64 block = slot / BLOCK_SIZE, offset = slot % BLOCK_SIZE;
    Cache* keys = static_cast<Cache*>(params.kv) + block * params.block_stride + offset * HEAD_SIZE;
    if constexpr (HAS_SCALES) {
        write_integers(params, token, block, int(offset), cosines);
        return;
    }
    const Scalar* key = static_cast<const Scalar*>(params.key) + token * params.key_stride;
    for (int i = int(threadIdx.x); i < params.num_kv_heads * WORK_PER_HEAD; i += THREADS) {
        const int head = i / WORK_PER_HEAD;
        move_part(key + head * HEAD_SIZE, keys + i64(head) * BLOCK_SIZE * HEAD_SIZE, cosines, i % WORK_PER_HEAD,
                  1.0f / params.key_scale);
    }
    if constexpr (VALUE_SIZE == 0) return;
    const i64 value_slot = params.value_slots[token];
    Cache* values = static_cast<Cache*>(params.kv) + params.value_offset +
                    value_slot / BLOCK_SIZE * params.block_stride + value_slot % BLOCK_SIZE * VALUE_SIZE;
    const Scalar* value = static_cast<const Scalar*>(params.value) + token * params.value_stride;
    for (int i = int(threadIdx.x); i < params.num_kv_heads * VALUE_VECTORS; i += THREADS) {
        const int head = i / larger(1, VALUE_VECTORS), start = i % larger(1, VALUE_VECTORS) * VECTOR;
        write_vector(values + i64(head) * BLOCK_SIZE * VALUE_SIZE + start,
                     read_vector(value + head * VALUE_SIZE + start), 1.0f / params.value_scale);
    }
}
