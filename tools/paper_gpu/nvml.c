// NVML: vLLM asks it for the GPU's name and capability, PyTorch for the memory in use where an allocation fails.
#include <stdio.h>
#include <string.h>

#include "core.h"

typedef unsigned long long u64;
enum { kOk = 0 };
static void* const kDevice = (void*)0x100;

int nvmlInit_v2(void) { return kOk; }
int nvmlInitWithFlags(unsigned flags) { return kOk; }
int nvmlShutdown(void) { return kOk; }
const char* nvmlErrorString(int error) { return "an error of the paper GPU's NVML"; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = paper_count(), kOk; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = kDevice, kOk; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) { return *device = kDevice, kOk; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) { return *device = kDevice, kOk; }
int nvmlDeviceGetName(void* device, char* text, unsigned size) { return snprintf(text, size, "%s", paper_name()), kOk; }
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  return snprintf(text, size, "GPU-00000000-0000-0000-0000-000000000001"), kOk;
}
int nvmlDeviceGetIndex(void* device, unsigned* index) { return *index = 0, kOk; }
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = paper_attribute(75), *minor = paper_attribute(76);
  return kOk;
}
int nvmlDeviceGetMemoryInfo(void* device, u64 memory[3]) {  // total, free, used
  memory[0] = paper_total(), memory[1] = paper_free(), memory[2] = memory[0] - memory[1];
  return kOk;
}
int nvmlDeviceGetMemoryInfo_v2(void* device, u64 memory[5]) {  // version, total, reserved, free, used
  memory[1] = paper_total(), memory[2] = 0, memory[3] = paper_free(), memory[4] = memory[1] - memory[3];
  return kOk;
}
// kind: what links them, of which vLLM asks for NVLink; status: 0 where there is one
int nvmlDeviceGetP2PStatus(void* device, void* peer, int kind, int* status) { return *status = paper_link() < 2, kOk; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return snprintf(text, size, "590.44"), kOk; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = kPaperDriver, kOk; }
int nvmlDeviceGetNumaNodeId(void* device, unsigned* node) { return *node = 0, kOk; }
int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) { return *current = *pending = 0, kOk; }
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* processes) { return *count = 0, kOk; }
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, void* processes) { return *count = 0, kOk; }
