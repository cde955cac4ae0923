// The CUDA driver, which Triton and PyTorch's expandable segments call beside the runtime.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "core.h"
#undef cuGetProcAddress

enum { kOk = CUDA_SUCCESS };
static CUcontext context(void) { return (CUcontext)0x1000; }

// clang-format off
CUresult cuDriverGetVersion(int* version) { return *version = kPaperDriver, kOk; }
CUresult cuDeviceGet(CUdevice* device, int index) { return *device = index, kOk; }
CUresult cuDeviceGetCount(int* count) { return *count = paper_count(), kOk; }
CUresult cuDeviceGetName(char* text, int size, CUdevice device) { return snprintf(text, size, "%s", paper_name()), kOk; }
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { memset(uuid, 0, sizeof *uuid); return uuid->bytes[15] = 1, kOk; }
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) { return *bytes = paper_total(), kOk; }
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) { return *value = paper_attribute(attribute), kOk; }
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) { return *major = paper_attribute(75), *minor = paper_attribute(76), kOk; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* found, CUdevice device) { return *found = context(), kOk; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) { return *flags = 0, *active = 1, kOk; }
CUresult cuCtxGetCurrent(CUcontext* found) { return *found = context(), kOk; }
CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, kOk; }
CUresult cuCtxPopCurrent_v2(CUcontext* found) { if (found) *found = context(); return kOk; }
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { return *total = paper_total(), *free = paper_free(), kOk; }
CUresult cuMemAlloc_v2(CUdeviceptr* memory, size_t bytes) { return (*memory = (CUdeviceptr)paper_allocate(bytes)) ? kOk : CUDA_ERROR_OUT_OF_MEMORY; }
CUresult cuMemFree_v2(CUdeviceptr memory) { return paper_release((void*)memory), kOk; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) { return paper_copy((void*)to, from, bytes), kOk; }
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) { return paper_copy(to, (void*)from, bytes), kOk; }

// Expandable segments: physical memory counts when it is made, whatever addresses it is then mapped to.
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* kind, CUmemAllocationGranularity_flags flags) { return *bytes = 2 << 20, kOk; }
CUresult cuMemCreate(CUmemGenericAllocationHandle* made, size_t bytes, const CUmemAllocationProp* kind, unsigned long long flags) {
  if (!paper_charge((long)bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t* held = paper_handle();
  *held = bytes;
  return *made = (CUmemGenericAllocationHandle)held, kOk;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle made) { return paper_charge(-(long)*(size_t*)made), kOk; }
CUresult cuMemAddressReserve(CUdeviceptr* begin, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags) { return *begin = (CUdeviceptr)paper_reserve(bytes), kOk; }

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  void* begin = NULL;
  const size_t bytes = paper_extent((void*)address, &begin);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr*)value = address; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned*)value = paper_is_device((void*)address) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr*)value = (CUdeviceptr)begin; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t*)value = bytes; break;
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)value = context(); break;
    default: *(int*)value = 0;
  }
  return kOk;
}

CUresult cuModuleLoadData(CUmodule* module, const void* code) { return *module = paper_handle(), kOk; }
CUresult cuModuleLoad(CUmodule* module, const char* path) { return *module = paper_handle(), kOk; }
CUresult cuModuleLoadDataEx(CUmodule* module, const void* code, unsigned count, CUjit_option* options, void** values) { return *module = paper_handle(), kOk; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) { return *function = paper_handle(), kOk; }
CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  if (address) *address = (CUdeviceptr)paper_reserve(1);
  if (bytes) *bytes = 4096;
  return kOk;
}
CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values, unsigned count, CUlibraryOption* more, void** more_values, unsigned more_count) { return *library = paper_handle(), kOk; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) { return *kernel = paper_handle(), kOk; }
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) { return *module = paper_handle(), kOk; }
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) { return *function = (CUfunction)kernel, kOk; }
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = paper_attribute(75) * 10 + paper_attribute(76); break;
    default: *value = 0;
  }
  return kOk;
}
CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) { return cuFuncGetAttribute(value, attribute, (CUfunction)kernel); }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t shared) { return *blocks = 2, kOk; }
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* launch) { return *clusters = 8, kOk; }
CUresult cuGetErrorString(CUresult error, const char** text) { return *text = "an error of the paper GPU", kOk; }
CUresult cuGetErrorName(CUresult error, const char** text) { return *text = "CUDA_ERROR_UNKNOWN", kOk; }
CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return *stream = paper_handle(), kOk; }
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) { return *stream = paper_handle(), kOk; }
CUresult cuStreamGetCtx(CUstream stream, CUcontext* found) { return *found = context(), kOk; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) { return *status = CU_STREAM_CAPTURE_STATUS_NONE, kOk; }
CUresult cuEventCreate(CUevent* event, unsigned flags) { return *event = paper_handle(), kOk; }
CUresult cuEventElapsedTime(float* ms, CUevent from, CUevent to) { return *ms = 1.0f, kOk; }
CUresult cuEventElapsedTime_v2(float* ms, CUevent from, CUevent to) { return *ms = 1.0f, kOk; }

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* result) {
  *function = paper_driver_function(name);
  if (result) *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? kOk : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) { return cuGetProcAddress_v2(name, function, version, flags, NULL); }
