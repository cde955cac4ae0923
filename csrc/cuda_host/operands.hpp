// What a product of a warp group reads: A [64, 16] and B [16, columns], found by their descriptors or in registers.
#pragma once

#include <cstring>
#include <memory>

#include "async_memory.hpp"
#include "hopper.hpp"

namespace kvplan_host {

constexpr int ROWS = 64, DEPTH = 16, MOST_COLUMNS = 256;

// The fields of a matrix descriptor.
struct Matrix {
    uint32_t begin, leading_bytes, stride_bytes;

    explicit Matrix(uint64_t descriptor)
        : begin(uint32_t(descriptor & 0x3FFF) << 4),
          leading_bytes(uint32_t(descriptor >> 16 & 0x3FFF) << 4),
          stride_bytes(uint32_t(descriptor >> 32 & 0x3FFF) << 4) {
        if (descriptor >> 62 != 1) fail("a matrix descriptor whose swizzling is not that of 128 bytes");
        if (descriptor >> 49 & 7) fail("a matrix descriptor with a base offset");
    }

    // Of one 16-bit element. `major` counts along 128 bytes of memory, `minor` from one such row to the next: the depth
    // is major in an ordinary matrix, whose 16 elements never leave those 128 bytes.
    uint16_t at(uint32_t major, uint32_t minor) const {
        const uint32_t row = minor % 8 * 128 + minor / 8 * stride_bytes;
        const uint32_t address = swizzled(begin + row + major / 64 * leading_bytes + major % 64 * 2) - SHARED_BEGIN;
        const std::vector<unsigned char>& memory = async_memory();
        if (address + 2 > memory.size()) fail("a matrix descriptor leads out of shared memory");
        uint16_t bits;
        std::memcpy(&bits, &memory[address], 2);
        return bits;
    }
};

struct Operands {
    uint16_t a[ROWS][DEPTH], b[DEPTH][MOST_COLUMNS];
};

// What the product reads of shared memory, and zeros.
inline std::unique_ptr<Operands> read_operands(const GroupProduct& product) {
    auto read = std::make_unique<Operands>();
    std::memset(read.get(), 0, sizeof(Operands));
    const Matrix b(product.b_descriptor);
    if (product.b_is_column_major) {
        for (int k = 0; k < DEPTH; ++k)
            for (int n = 0; n < product.columns; ++n) read->b[k][n] = b.at(uint32_t(n), uint32_t(k));
    } else {
        for (int n = 0; n < product.columns; ++n)
            for (int k = 0; k < DEPTH; ++k) read->b[k][n] = b.at(uint32_t(k), uint32_t(n));
    }
    if (product.a_registers != nullptr) return read;
    const Matrix a(product.a_descriptor);
    for (int row = 0; row < ROWS; ++row)
        for (int k = 0; k < DEPTH; ++k) read->a[row][k] = a.at(uint32_t(k), uint32_t(row));
    return read;
}

inline uint64_t hash_of(const Operands& operands) {
    uint64_t hash = 1469598103934665603u, words[sizeof(Operands) / 8];
    std::memcpy(words, &operands, sizeof(Operands));
    for (const uint64_t word : words) hash = (hash ^ word) * 1099511628211u;
    return hash;
}

inline void take_registers(Operands& operands, const uint32_t* registers, int thread) {
    const int row = thread / WARP_SIZE * 16 + thread % WARP_SIZE / 4, column = thread % 4 * 2;
    for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e)
            operands.a[row + i % 2 * 8][column + i / 2 * 8 + e] = uint16_t(registers[i] >> 16 * e);
}

}  // namespace kvplan_host
