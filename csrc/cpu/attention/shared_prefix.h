// Decoding sequences whose block tables begin alike: a shared prompt, the samples of one request, beams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../include/kvplan_cpu.h"

namespace kvplan {

// Some sequences with one new token each, whose first `tokens` tokens lie in the same blocks. All of them see all of
// these: attention over them reads and packs the cache once, with the query rows of all members.
struct PrefixGroup {
  int32_t first_member, num_members;  // in SharedPrefixes::members
  int32_t tokens;                     // a multiple of the block size
  int32_t num_parts;                  // that these are cut into
};

struct SharedPrefixes {
  std::vector<PrefixGroup> groups;
  std::vector<int32_t> members;        // sequences, one group's after the other's
  std::vector<int32_t> group_of;       // [num_sequences]: index into groups, -1 for a sequence by itself

  const PrefixGroup* of(int64_t sequence) const {
    const int32_t group = group_of[static_cast<size_t>(sequence)];
    return group < 0 ? nullptr : &groups[static_cast<size_t>(group)];
  }
};

// Finds the groups that are worth it. Reads the tables that check_attention has checked. num_parts is left at 1.
void find_shared_prefixes(const kvplan_attention& args, SharedPrefixes& shared);

}  // namespace kvplan
