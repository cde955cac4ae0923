// The CUDA runtime: memory is accounted, copies between pieces of the host are made, kernels are not run.
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { kOk = cudaSuccess };
static __thread cudaError_t last_error;
static int capturing;
static unsigned long long capture;

// clang-format off
cudaError_t cudaGetDeviceCount(int* count) { return *count = paper_count(), kOk; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) { return *can = paper_link() > 0, kOk; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, kOk; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = kPaperDriver, kOk; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = kPaperRuntime, kOk; }
cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) { return *value = paper_attribute(attribute), kOk; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) { return snprintf(text, size, "0000:01:00.0"), kOk; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { if (least) *least = 0; if (greatest) *greatest = -5; return kOk; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) { return *pool = paper_handle(), kOk; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", paper_name());
  p->uuid.bytes[15] = p->pciBusID = 1;
  p->totalGlobalMem = paper_total();
  p->major = paper_attribute(75), p->minor = paper_attribute(76);
  p->multiProcessorCount = paper_attribute(16), p->l2CacheSize = paper_attribute(38);
  p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = paper_attribute(39);
  p->maxBlocksPerMultiProcessor = paper_attribute(106);
  for (int i = 0; i < 3; ++i) p->maxThreadsDim[i] = paper_attribute(2 + i), p->maxGridSize[i] = paper_attribute(5 + i);
  p->regsPerBlock = p->regsPerMultiprocessor = p->totalConstMem = 65536;
  p->sharedMemPerBlock = paper_attribute(8), p->sharedMemPerBlockOptin = paper_attribute(97);
  p->sharedMemPerMultiprocessor = paper_attribute(81), p->reservedSharedMemPerBlock = paper_attribute(111);
  p->memPitch = 2147483647, p->textureAlignment = 512, p->memoryBusWidth = 384, p->asyncEngineCount = 2;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = p->managedMemory = 1;
  p->cooperativeLaunch = p->memoryPoolsSupported = p->concurrentManagedAccess = p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  return kOk;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return *total = paper_total(), *free = paper_free(), kOk; }
cudaError_t cudaMalloc(void** memory, size_t bytes) { return (*memory = paper_allocate(bytes)) ? kOk : (last_error = cudaErrorMemoryAllocation); }
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) { return cudaMalloc(memory, bytes); }
cudaError_t cudaMallocManaged(void** memory, size_t bytes, unsigned flags) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFree(void* memory) { return paper_release(memory), kOk; }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) { return cudaFree(memory); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) { return posix_memalign(memory, 4096, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : kOk; }
cudaError_t cudaMallocHost(void** memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }
cudaError_t cudaFreeHost(void* memory) { return free(memory), kOk; }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) { return *device = host, kOk; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* found, const void* address) {
  memset(found, 0, sizeof *found);
  found->type = paper_is_device(address) ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  found->devicePointer = (void*)address, found->hostPointer = paper_is_device(address) ? NULL : (void*)address;
  return kOk;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) { return paper_copy(to, from, bytes), kOk; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) { return paper_copy(to, from, bytes), kOk; }
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t i = 0; i < height && !paper_is_device(to); ++i) paper_copy((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
  return kOk;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return paper_fill(to, value, bytes), kOk; }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) { return paper_fill(to, value, bytes), kOk; }

cudaError_t cudaGetLastError(void) { const cudaError_t error = last_error; last_error = kOk; return error; }
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the paper GPU"; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown"; }

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return *stream = paper_handle(), kOk; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) { return *priority = 0, kOk; }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) { return *flags = cudaStreamNonBlocking, kOk; }
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) { return *device = 0, kOk; }
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = paper_handle(), kOk; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) { return cudaEventCreate(event); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) { return *ms = 1.0f, kOk; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) { if (!capturing) function(data); return kOk; }

// Graphs: a capture is begun and ended, and holds one node: PyTorch warns of an empty one.
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) { return *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone, kOk; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  if (id) *id = capture;
  if (graph) *graph = paper_handle();
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) { return capturing = 1, ++capture, kOk; }
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) { return capturing = 0, *graph = paper_handle(), kOk; }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) { if (nodes) nodes[0] = paper_handle(); return *count = 1, kOk; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) { return *exec = paper_handle(), kOk; }
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) { return *exec = paper_handle(), kOk; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy, unsigned count, unsigned flags) { return *object = paper_handle(), kOk; }
cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void* value) { return *(unsigned long long*)value = 0, kOk; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void* value) { return *(unsigned long long*)value = 0, kOk; }

// cub asks which architecture a kernel was compiled for, and takes its tiles, and with them its workspaces, from a table
// by that: one that PyTorch is not built for is an error there.
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* found, const void* function) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024, found->numRegs = 32;
  found->ptxVersion = found->binaryVersion = paper_built_for();
  found->maxDynamicSharedSizeBytes = paper_attribute(97);
  return kOk;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads, size_t shared) { return *blocks = 2, kOk; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads, size_t shared, unsigned flags) { return *blocks = 2, kOk; }
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const cudaLaunchConfig_t* launch) { return *clusters = 8, kOk; }
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function, const cudaLaunchConfig_t* launch) { return *size = 8, kOk; }
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  static void* room;
  if (!room) room = paper_reserve(1);
  return *address = room, kOk;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, enum cudaJitOption* options, void** values, unsigned count, enum cudaLibraryOption* more, void** more_values, unsigned more_count) { return *library = paper_handle(), kOk; }
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) { return *kernel = paper_handle(), kOk; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { return *kernel = (void*)function, kOk; }
void** __cudaRegisterFatBinary(void* code) { static void* slots[4]; return slots; }
char __cudaInitModule(void** code) { return 1; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult* result) {
  *function = paper_driver_function(name);
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return kOk;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, enum cudaDriverEntryPointQueryResult* result) { return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result); }
