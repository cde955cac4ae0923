// AMX: eight tiles of 16 rows of 64 bytes, and their products: of bfloat16 with sums in float32, of signed bytes with
// unsigned ones with sums in 32 bits.
//
// Tile numbers are part of the instructions, so these are macros that take literals. STREAM is LOAD past the first-level
// cache, which is left to what is read more often. Where the compiler does not compile for AMX, KVPLAN_AMX is 0 and nothing
// uses them, but for tests, which run them as plain loops (KVPLAN_TWINS).
#pragma once

#include "simd.h"

#if KVPLAN_BFLOAT16_DOT && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define KVPLAN_AMX 1
#elif defined(KVPLAN_TWINS)
#include "twins/amx.h"
#define KVPLAN_AMX 1
#else
#define KVPLAN_AMX 0
#endif

// Products of bytes, which each such processor has too.
#if KVPLAN_AMX && (defined(__AMX_INT8__) || defined(KVPLAN_TWINS))
#define KVPLAN_AMX_INT8 1
#else
#define KVPLAN_AMX_INT8 0
#endif

namespace kvplan {

// Whether tiles multiply bfloat16 here: the process may use them, they gave what plain loops give when first asked
// (products/packed/packed_amx.cpp), and they are wanted. Then they do for any number of rows, so that rows are alike.
bool tiles_are_used();

}  // namespace kvplan

#if KVPLAN_AMX

#if defined(KVPLAN_TWINS)
#define KVPLAN_TILE_CONFIGURE(shapes) ::kvplan::amx_twin().configure(shapes)
#define KVPLAN_TILE_RELEASE() ::kvplan::amx_twin().release()
#define KVPLAN_TILE_ZERO(tile) ::kvplan::amx_twin().zero(tile)
#define KVPLAN_TILE_LOAD(tile, base, stride) ::kvplan::amx_twin().load(tile, base, stride)
#define KVPLAN_TILE_STREAM(tile, base, stride) ::kvplan::amx_twin().load(tile, base, stride)
#define KVPLAN_TILE_STORE(tile, base, stride) ::kvplan::amx_twin().store(tile, base, stride)
#define KVPLAN_TILE_MULTIPLY(sums, a, b) ::kvplan::amx_twin().multiply(sums, a, b)
#define KVPLAN_TILE_MULTIPLY_BYTES(sums, a, b) ::kvplan::amx_twin().multiply_bytes(sums, a, b)
#else
#include <sys/syscall.h>
#include <unistd.h>
#define KVPLAN_TILE_CONFIGURE(shapes) _tile_loadconfig(shapes)
#define KVPLAN_TILE_RELEASE() _tile_release()
#define KVPLAN_TILE_ZERO(tile) _tile_zero(tile)
#define KVPLAN_TILE_LOAD(tile, base, stride) _tile_loadd(tile, base, stride)
#define KVPLAN_TILE_STREAM(tile, base, stride) _tile_stream_loadd(tile, base, stride)
#define KVPLAN_TILE_STORE(tile, base, stride) _tile_stored(tile, base, stride)
#define KVPLAN_TILE_MULTIPLY(sums, a, b) _tile_dpbf16ps(sums, a, b)
#define KVPLAN_TILE_MULTIPLY_BYTES(sums, a, b) _tile_dpbsud(sums, a, b)
#endif

namespace kvplan {

constexpr int kTileHeight = 16;     // rows
constexpr int kTileBytes = 64;      // of a row
constexpr int kTilePairs = 16;      // of bfloat16 in a row, and rows of a tile of weights
constexpr int kTileOutputs = 16;    // floats in a row

// What ldtilecfg reads.
struct TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int height) {
    row_bytes[tile] = kTileBytes;
    rows[tile] = static_cast<uint8_t>(height);
  }
};
static_assert(sizeof(TileShapes) == 64);

// The compiler does not know what tile instructions read: memory is written before this.
KVPLAN_INLINE void settle(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

// Linux lets a process use tiles that asks for them (arch_prctl(2)); false also where a hypervisor hides them.
inline bool amx_is_permitted() {
#if defined(KVPLAN_TWINS)
  return true;
#else
  constexpr long kAskForPermission = 0x1023, kTileData = 18;
  static const bool is_permitted = syscall(SYS_arch_prctl, kAskForPermission, kTileData) == 0;
  return is_permitted;
#endif
}

}  // namespace kvplan

#endif
