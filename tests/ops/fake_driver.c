/* A CUDA driver and a cuBLAS that keep "device" memory in host memory and write each launch to a file, so that the
   launcher can be tested where there is no GPU. Kernels compute nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Address;
static const size_t kLargest = (size_t)1 << 30;
static int held = 0; /* contexts, streams and pieces of memory that nobody gave back */
int fake_held(void) { return held; }

int cuInit(unsigned flags) { (void)flags; return getenv("FAKE_CUDA_BROKEN") ? 999 : 0; }
int cuGetErrorName(int error, const char** name) {
  *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuGetErrorString(int error, const char** text) { *text = error == 2 ? "out of memory" : "unknown error"; return 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int length, int device) { (void)device; snprintf(name, length, "Fake GPU"); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 4;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { (void)device; *context = (void*)1; ++held; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; --held; return 0; }
int cuCtxSetCurrent(void* context) { (void)context; return 0; }
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) { *free_bytes = kLargest; *total = 2 * kLargest; return 0; }
int cuMemAlloc_v2(Address* address, size_t size) {
  if (size > kLargest) return 2;
  *address = (Address)aligned_alloc(256, (size + 255) / 256 * 256);
  ++held;
  return 0;
}
int cuMemFree_v2(Address address) { free((void*)address); --held; return 0; }
int cuMemHostAlloc(void** address, size_t size, unsigned flags) { (void)flags; *address = malloc(size); return 0; }
int cuMemFreeHost(void* address) { free(address); return 0; }
int cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t size, void* stream) {
  (void)stream;
  memcpy((void*)to, from, size);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, Address from, size_t size, void* stream) {
  (void)stream;
  memcpy(to, (void*)from, size);
  return 0;
}
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, void* stream) {
  (void)stream;
  memcpy((void*)to, (void*)from, size);
  return 0;
}
int cuMemsetD8Async(Address to, unsigned char value, size_t size, void* stream) {
  (void)stream;
  memset((void*)to, value, size);
  return 0;
}
int cuStreamCreate(void** stream, unsigned flags) { (void)flags; *stream = (void*)7; ++held; return 0; }
int cuStreamDestroy_v2(void* stream) { (void)stream; --held; return 0; }
int cuStreamSynchronize(void* stream) { (void)stream; return 0; }
int cuEventCreate(void** event, unsigned flags) { (void)flags; *event = malloc(1); return 0; }
int cuEventDestroy_v2(void* event) { free(event); return 0; }
int cuEventRecord(void* event, void* stream) { (void)event; (void)stream; return 0; }
int cuEventSynchronize(void* event) { (void)event; return 0; }
int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  (void)start;
  (void)end;
  *milliseconds = 1.5f;
  return 0;
}
int cuModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "cubin", 5)) return 200;
  *module = (void*)3;
  return 0;
}
int cuModuleUnload(void* module) { (void)module; return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  *function = strdup(name);
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function;
  (void)attribute;
  return value > 232448;
}
struct config {
  unsigned x, y, z, threads, ty, tz, shared;
  void* stream;
  const int* attributes;
  unsigned count;
};

int cuLaunchKernelEx(const struct config* given, void* function, void** parameters, void** extra) {
  (void)parameters;
  (void)extra;
  FILE* file = fopen(getenv("FAKE_CUDA_LOG"), "a");
  fprintf(file, "%s %u %u %u %u %u%s\n", (const char*)function, given->x, given->y, given->z, given->threads,
          given->shared, given->count && given->attributes[0] == 6 && given->attributes[2] == 1 ? " early" : "");
  fclose(file);
  return 0;
}

int cublasCreate_v2(void** handle) { *handle = (void*)5; return 0; }
int cublasDestroy_v2(void* handle) { (void)handle; return 0; }
int cublasSetStream_v2(void* handle, void* stream) { (void)handle; (void)stream; return 0; }
int cublasSetWorkspace_v2(void* handle, void* memory, size_t size) { (void)handle; (void)memory; (void)size; return 0; }
int cublasGemmEx(void) { return 0; }
