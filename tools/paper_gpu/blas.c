// cuBLAS without products. PyTorch allocates its workspace, which is so accounted as on a GPU.
#include "core.h"

int cublasCreate_v2(void** handle) { return !(*handle = paper_handle()); }
int cublasGetVersion_v2(void* handle, int* version) { return *version = kPaperLibrary, 0; }
int cublasGetMathMode(void* handle, int* mode) { return *mode = 0; }
int cublasGetPointerMode_v2(void* handle, int* mode) { return *mode = 0; }
const char* cublasGetStatusString(int status) { return "an error of the paper GPU's cuBLAS"; }
const char* cublasGetStatusName(int status) { return "PAPER_ERROR"; }
