// Puts new K and V rows into their slots, with rotary embedding of Q and K on the way where the model has one.
//
// Rotation pairs element i with i + ROTARY / 2 (NeoX halves):  (a, b) -> (a cos - b sin, b cos + a sin).
#include "../reduce.cuh"

using Scalar = KVPLAN_SCALAR;
using Cache = KVPLAN_CACHE;
constexpr int HEAD_SIZE = KVPLAN_HEAD_SIZE;
constexpr int BLOCK_SIZE = KVPLAN_BLOCK_SIZE;
#ifdef KVPLAN_VALUE_SIZE
constexpr int VALUE_SIZE = KVPLAN_VALUE_SIZE;  // 0: a value is the beginning of its key
#else
constexpr int VALUE_SIZE = HEAD_SIZE;
#endif
constexpr int ROTARY = KVPLAN_ROTARY;  // leading elements of a head that rotate; 0: none
// Elements that one thread handles at a time: whole vectors of 16 bytes, where half a rotation is made of them.
constexpr int VECTOR = ROTARY % 16 == 0 ? 8 : ROTARY % 8 == 0 ? 4 : 1;
constexpr int THREADS = 128;
constexpr int HEAD_VECTORS = HEAD_SIZE / VECTOR;
constexpr int VALUE_VECTORS = VALUE_SIZE / VECTOR;
constexpr int HALF_VECTORS = ROTARY / 2 / VECTOR;
// The rotating threads take a vector and its partner half a rotation away; the rest of a head takes one vector each.
constexpr int WORK_PER_HEAD = HEAD_VECTORS - HALF_VECTORS;

static_assert(HEAD_SIZE % 8 == 0 && VALUE_SIZE % 8 == 0 && ROTARY % (2 * VECTOR) == 0 && ROTARY <= HEAD_SIZE);

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

struct Vector {
    float elements[VECTOR];
};

KVPLAN_INLINE Vector read_vector(const Scalar* source) {
    Vector result;
    constexpr int PACK = 16 / int(sizeof(Scalar));
    if constexpr (VECTOR % PACK != 0) {
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) result.elements[i] = to_float(source[i]);
    } else {
        KVPLAN_UNROLL
        for (int p = 0; p < VECTOR / PACK; ++p) {
            const Pack<Scalar> pack = load_pack(source + p * PACK);
            KVPLAN_UNROLL
            for (int i = 0; i < PACK; ++i) result.elements[p * PACK + i] = to_float(pack.elements[i]);
        }
    }
    return result;
}

template <typename T>
KVPLAN_INLINE void write_vector(T* target, const Vector& source, float factor) {
    if constexpr (VECTOR * sizeof(T) % 16 != 0 && VECTOR < 8) {
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) target[i] = from_float<T>(source.elements[i] * factor);
    } else if constexpr (sizeof(T) == 1) {
        union {
            uint2 vector;
            T elements[VECTOR];
        } pack;
        KVPLAN_UNROLL
        for (int i = 0; i < VECTOR; ++i) pack.elements[i] = from_float<T>(source.elements[i] * factor);
        store_vector<uint2>(target, pack.vector);
    } else {
        constexpr int PACK = 16 / int(sizeof(T));
        KVPLAN_UNROLL
        for (int p = 0; p < VECTOR / PACK; ++p) {
            Pack<T> pack;
            KVPLAN_UNROLL
            for (int i = 0; i < PACK; ++i) pack.elements[i] = from_float<T>(source.elements[p * PACK + i] * factor);
            store_pack(target + p * PACK, pack);
        }
    }
}

// Rotates elements [start, start + VECTOR) of the first half with their partners in the second.
KVPLAN_INLINE void rotate(Vector& first, Vector& second, const float* cosines, int start) {
    constexpr int PART = smaller(VECTOR, Pack<float>::SIZE);
    KVPLAN_UNROLL
    for (int p = 0; p < VECTOR; p += PART) {
        using Angles = Elements<float, PART>;
        const Angles cosine = Angles::load(cosines + start + p), sine = Angles::load(cosines + ROTARY / 2 + start + p);
        KVPLAN_UNROLL
        for (int i = 0; i < PART; ++i) {
            const float a = first.elements[p + i], b = second.elements[p + i];
            first.elements[p + i] = a * cosine.values[i] - b * sine.values[i];
            second.elements[p + i] = b * cosine.values[i] + a * sine.values[i];
        }
    }
}

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

// grid (num_tokens), block THREADS.
KVPLAN_KERNEL(write_kv, WriteParams, THREADS) {
    const int token = int(blockIdx.x);
    const float* cosines = cosines_of(params, token);
    rotate_query(params, token, cosines);
    const i64 slot = params.slots[token];
    if (slot < 0) return;
    const i64 block = slot / BLOCK_SIZE, offset = slot % BLOCK_SIZE;
    Cache* keys = static_cast<Cache*>(params.kv) + block * params.block_stride + offset * HEAD_SIZE;
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
