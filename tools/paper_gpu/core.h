// A GPU on paper: what it says of itself, and device memory that is accounted and never touched.
//
// Its figures come from the environment: PAPER_NAME, PAPER_CC (86 for 8.6), PAPER_TOTAL (bytes), PAPER_SMS, PAPER_L2 (bytes).
// Of several GPUs, all alike, the process has one: PAPER_COUNT (default 1), PAPER_LINK (0: they reach each other through
// the host, the default; 1: over PCIe; 2: over NVLink).
#pragma once
#include <stddef.h>

enum { kPaperDriver = 13010, kPaperRuntime = 13000, kPaperLibrary = 130101 };  // versions that the libraries state

const char* paper_name(void);
int paper_count(void);
int paper_link(void);
size_t paper_total(void);
size_t paper_free(void);
// A device's attribute by the number that it has in both APIs (cudaDeviceAttr, CUdevice_attribute).
int paper_attribute(int attribute);
// The newest architecture that PyTorch's kernels are built for and that this GPU runs: 86 on a GPU of 8.9.
int paper_built_for(void);

// Device memory. NULL where the GPU has too little.
void* paper_allocate(size_t bytes);
void paper_release(void* memory);
// Addresses alone, of which nothing is accounted, and an account without addresses: what cuMemMap joins.
void* paper_reserve(size_t bytes);
int paper_charge(long bytes);
// Bytes of the allocation that holds `address`, and where it begins; 0 where none does.
size_t paper_extent(const void* address, void** begin);
int paper_is_device(const void* address);

void paper_copy(void* to, const void* from, size_t bytes);
void paper_fill(void* to, int value, size_t bytes);
// Something to point to: a stream, an event, a module.
void* paper_handle(void);
// The function of the driver of this name, its newest version first; NULL where there is none.
void* paper_driver_function(const char* name);
