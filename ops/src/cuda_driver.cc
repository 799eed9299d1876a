#include "cuda_driver.h"

#include <dlfcn.h>

#include <mutex>

#include "failure.h"

namespace ortolan::cuda {
namespace {

constexpr const char* kRemedy = " Install NVIDIA's driver (580 or later for CUDA 13), or run the target cpu.";

template <typename F>
void find(void* library, const char* name, F*& target) {
  target = reinterpret_cast<F*>(dlsym(library, name));
  if (!target) throw Failure(std::string("the CUDA driver lacks ") + name + ": it is too old." + kRemedy);
}

Driver load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Failure(std::string("this machine has no CUDA driver (") + dlerror() + ")." + kRemedy);
  Driver d{};
  find(library, "cuInit", d.init);
  find(library, "cuGetErrorName", d.error_name);
  find(library, "cuGetErrorString", d.error_text);
  find(library, "cuDeviceGetCount", d.device_count);
  find(library, "cuDeviceGet", d.device_get);
  find(library, "cuDeviceGetName", d.device_name);
  find(library, "cuDeviceGetAttribute", d.device_attribute);
  find(library, "cuDevicePrimaryCtxRetain", d.primary_retain);
  find(library, "cuDevicePrimaryCtxRelease_v2", d.primary_release);
  find(library, "cuCtxSetCurrent", d.set_current);
  find(library, "cuMemGetInfo_v2", d.memory_info);
  find(library, "cuMemAlloc_v2", d.allocate);
  find(library, "cuMemFree_v2", d.release);
  find(library, "cuMemHostAlloc", d.allocate_host);
  find(library, "cuMemFreeHost", d.release_host);
  find(library, "cuMemcpyHtoDAsync_v2", d.copy_to_device);
  find(library, "cuMemcpyDtoHAsync_v2", d.copy_to_host);
  find(library, "cuMemcpyDtoDAsync_v2", d.copy_within);
  find(library, "cuMemsetD8Async", d.fill);
  find(library, "cuStreamCreate", d.stream_create);
  find(library, "cuStreamDestroy_v2", d.stream_destroy);
  find(library, "cuStreamSynchronize", d.stream_synchronize);
  find(library, "cuEventCreate", d.event_create);
  find(library, "cuEventDestroy_v2", d.event_destroy);
  find(library, "cuEventRecord", d.event_record);
  find(library, "cuEventSynchronize", d.event_synchronize);
  find(library, "cuEventElapsedTime", d.event_elapsed);
  find(library, "cuModuleLoadData", d.module_load);
  find(library, "cuModuleUnload", d.module_unload);
  find(library, "cuModuleGetFunction", d.module_function);
  find(library, "cuFuncSetAttribute", d.function_set);
  find(library, "cuLaunchKernelEx", d.launch);
  const Result result = d.init(0);
  if (result) throw Failure("the CUDA driver cannot be initialised (error " + std::to_string(result) + ")." + kRemedy);
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver found = load();
  return found;
}

void check(Result result, const std::string& what) {
  if (!result) return;
  const char *name = nullptr, *text = nullptr;
  driver().error_name(result, &name);
  driver().error_text(result, &text);
  throw Failure(what + ": " + (name ? name : std::to_string(result)) + (text ? std::string(", ") + text : "") + ".");
}

}  // namespace ortolan::cuda
