#define _GNU_SOURCE
#include "core.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t kRegion = 8UL << 40;  // addresses, of which the process uses next to none
static const size_t kGrain = 2UL << 20;   // the driver gives whole pages of 2 MiB

typedef struct {
  char* begin;
  size_t bytes;
} Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *region, *cursor;
static size_t used;
static Block* blocks;
static size_t num_blocks, capacity;

static size_t stated(const char* variable) {
  const char* value = getenv(variable);
  if (!value) {
    fprintf(stderr, "paper GPU: %s is not set\n", variable);
    abort();
  }
  return strtoull(value, NULL, 10);
}

static int capability(void) { return (int)stated("PAPER_CC"); }

const char* paper_name(void) { return getenv("PAPER_NAME"); }

static int stated_or(const char* variable, int otherwise) {
  return getenv(variable) ? (int)stated(variable) : otherwise;
}

int paper_count(void) { return stated_or("PAPER_COUNT", 1); }

int paper_link(void) { return stated_or("PAPER_LINK", 0); }

size_t paper_total(void) { return stated("PAPER_TOTAL"); }

size_t paper_free(void) { return paper_total() - used; }

static size_t rounded(size_t bytes) { return ((bytes ? bytes : 1) + kGrain - 1) / kGrain * kGrain; }

void* paper_reserve(size_t bytes) {
  pthread_mutex_lock(&lock);
  if (!region) {
    region = mmap(NULL, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) {
      perror("paper GPU: no room for its addresses");
      abort();
    }
    cursor = (char*)rounded((size_t)region);
  }
  char* begin = cursor;
  cursor += rounded(bytes);
  if (cursor > region + kRegion) {
    fprintf(stderr, "paper GPU: out of addresses\n");
    abort();
  }
  // readable: code of the host may look at a device's pointer, and finds zeros
  mprotect(begin, rounded(bytes), PROT_READ | PROT_WRITE);
  pthread_mutex_unlock(&lock);
  return begin;
}

int paper_charge(long bytes) {
  pthread_mutex_lock(&lock);
  const int fits = (long)paper_free() >= bytes;
  if (fits) used += bytes;
  pthread_mutex_unlock(&lock);
  return fits;
}

void* paper_allocate(size_t bytes) {
  bytes = rounded(bytes);
  if (!paper_charge((long)bytes)) return NULL;
  char* begin = paper_reserve(bytes);
  pthread_mutex_lock(&lock);
  if (num_blocks == capacity) {
    capacity = capacity ? capacity * 2 : 256;
    blocks = realloc(blocks, capacity * sizeof *blocks);
  }
  blocks[num_blocks++] = (Block){begin, bytes};
  pthread_mutex_unlock(&lock);
  return begin;
}

void paper_release(void* memory) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_blocks; ++i) {
    if (blocks[i].begin != memory) continue;
    used -= blocks[i].bytes;
    madvise(memory, blocks[i].bytes, MADV_DONTNEED);
    mprotect(memory, blocks[i].bytes, PROT_NONE);
    blocks[i] = blocks[--num_blocks];
    break;
  }
  pthread_mutex_unlock(&lock);
}

size_t paper_extent(const void* address, void** begin) {
  size_t bytes = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < num_blocks && !bytes; ++i) {
    if ((char*)address < blocks[i].begin || (char*)address >= blocks[i].begin + blocks[i].bytes) continue;
    bytes = blocks[i].bytes;
    if (begin) *begin = blocks[i].begin;
  }
  pthread_mutex_unlock(&lock);
  return bytes;
}

int paper_is_device(const void* address) {
  return region && (char*)address >= region && (char*)address < region + kRegion;
}

// No kernel runs, so what a device's tensor holds means nothing. It reads as zeros, which every check of the host can
// take: what it really read would be whatever the page held, and writing there would take the machine's memory.
void paper_copy(void* to, const void* from, size_t bytes) {
  if (paper_is_device(to) || !bytes) return;
  if (paper_is_device(from))
    memset(to, 0, bytes);
  else
    memmove(to, from, bytes);
}

void paper_fill(void* to, int value, size_t bytes) {
  if (!paper_is_device(to)) memset(to, value, bytes);
}

void* paper_handle(void) { return calloc(1, 256); }

void* paper_driver_function(const char* name) {
  static const char* const suffixes[] = {"_v3", "_v2", ""};
  char full[256];
  void* found = NULL;
  for (int i = 0; i < 3 && !found; ++i) {
    snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
    found = dlsym(RTLD_DEFAULT, full);
  }
  return found;
}

int paper_built_for(void) {
  static const int built[] = {120, 100, 90, 86, 80, 75};
  for (int i = 0; i < 6; ++i)
    if (built[i] <= capability()) return built[i];
  return 75;
}

// Shared memory of a multiprocessor in KiB, of which a block may use all but 1; threads of a multiprocessor
// (CUDA C++ Programming Guide, technical specifications per compute capability).
static int shared_kib(int cc) { return cc == 75 ? 64 : cc == 80 || cc == 87 ? 164 : cc >= 90 && cc < 120 ? 228 : 100; }

static int threads(int cc) { return cc == 75 ? 1024 : cc == 80 || (cc >= 90 && cc < 120) ? 2048 : 1536; }

int paper_attribute(int attribute) {
  const int cc = capability();
  switch (attribute) {
    case 1: case 2: case 3: return 1024;                                    // threads of a block, its x and y
    case 4: return 64;                                                      // its z
    case 5: case 11: return 2147483647;                                     // the grid's x; the pitch
    case 6: case 7: return 65535;                                           // the grid's y and z
    case 8: return 49152;                                                   // shared memory of a block
    case 9: case 12: case 82: return 65536;                                 // constant memory; registers
    case 10: return 32;                                                     // threads of a warp
    case 13: return 1700000;                                                // clock in kHz
    case 14: return 512;                                                    // alignment of textures
    case 16: return (int)stated("PAPER_SMS");
    case 36: return 9000000;                                                // the memory's clock in kHz
    case 37: return 384;                                                    // its bus in bits
    case 38: return (int)stated("PAPER_L2");
    case 39: return threads(cc);
    case 40: return 2;                                                      // engines that copy
    case 75: return cc / 10;
    case 76: return cc % 10;
    case 81: return shared_kib(cc) << 10;
    case 87: return 32;                                                     // float32 against float64
    case 97: return (shared_kib(cc) - (cc == 75 ? 0 : 1)) << 10;            // shared memory that a block may ask for
    case 106: return 16;                                                    // blocks of a multiprocessor
    case 108: case 109: return 2 << 20;                                     // L2 that may be kept
    case 111: return 1024;                                                  // shared memory that the driver takes
    case 119: case 120: return cc >= 90;                                    // clusters, tensor maps
    // maps host memory, runs kernels side by side, unified addresses, streams' priorities, managed memory, pools ...
    case 15: case 19: case 31: case 33: case 41: case 78: case 83: case 86: case 89: case 90: case 91: case 95: case 102:
    case 103: case 115: return 1;
    default: return 0;
  }
}
