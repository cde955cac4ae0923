// The inner loop of products with packed weights in bfloat16, in AMX's tiles.
//
// A panel is a row of 64 outputs for each pair of inputs, which is what a tile of weights holds for 16 outputs and 16 pairs:
// nothing is packed another way. Up to 16 rows of x keep the sums of a whole panel in four tiles, and each tile of weights
// is loaded once; up to 32 rows take two panels' quarters at a time, so that a loaded tile is multiplied twice.
#pragma once

#include "../../amx.h"
#include "packed_product.h"

namespace kvplan {

constexpr int64_t kTileInputs = 32;  // a row of a tile of bfloat16

}  // namespace kvplan

#if KVPLAN_AMX

namespace kvplan {

static_assert(kTileInputs == 2 * kTilePairs);
constexpr int64_t kPanelRowBytes = 2 * kPanelOutputs * int64_t{sizeof(BFloat16)};  // of one pair of inputs
constexpr int64_t kSumsRowBytes = kPanelOutputs * int64_t{sizeof(float)};
static_assert(kPanelOutputs == 4 * kTileOutputs);

// For comparisons: with tiles, where they can be used, or without. Not while products run.
void use_tiles(bool wanted);

// Whether vectors that add in the tiles' order give the tiles' bits: tried when first asked.
bool one_row_is_as_in_tiles();

#if KVPLAN_AMX_INT8
// Whether tiles of bytes can be used, gave what plain loops give, and are wanted (use_tiles).
bool byte_tiles_are_used();
#endif

// multiply_unit in tiles.
void multiply_panels_in_tiles(const PackedProduct<BFloat16>& product, int64_t panel, int64_t panels, int64_t end_panel,
                              float* sums, ConfiguredTiles& tiles);

}  // namespace kvplan

#endif
