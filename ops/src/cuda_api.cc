// What Python asks of a GPU by ctypes. Every function gives null, or what went wrong in words that stay valid until
// the thread's next call. Addresses are the device's; copies and fills are queued on the device's stream.
#include <cstring>
#include <string>

#include "cuda_device.h"
#include "cuda_sample.h"
#include "failure.h"

#define ORTOLAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortolan::cuda {
namespace {

template <typename Body>
const char* guarded(Body&& body) noexcept {
  thread_local std::string problem;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

Device& entered(int64_t number) {
  Device& device = device_of(number);
  device.make_current();
  return device;
}

}  // namespace
}  // namespace ortolan::cuda

using ortolan::cuda::Address;
using ortolan::cuda::check;
using ortolan::cuda::driver;
using ortolan::cuda::entered;
using ortolan::cuda::guarded;

ORTOLAN_EXPORT const char* ortolan_cuda_open(int ordinal, int64_t* number, void** stream) noexcept {
  return guarded([&] {
    *number = ortolan::cuda::open_device(ordinal);
    *stream = entered(*number).stream();
  });
}

// Not what went wrong, but how texts end of failures that only another export mends.
ORTOLAN_EXPORT const char* ortolan_cuda_misfit() noexcept { return ortolan::kMisfit; }

ORTOLAN_EXPORT const char* ortolan_cuda_close(int64_t number) noexcept {
  return guarded([&] { ortolan::cuda::close_device(number); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_describe(int64_t number, char* name, int length, int* architecture,
                                                 int* multiprocessors) noexcept {
  return guarded([&] {
    const auto& device = entered(number);
    int major = 0, minor = 0;
    check(driver().device_name(name, length, device.id()), "naming the GPU");
    check(driver().device_attribute(&major, ortolan::cuda::kMajor, device.id()), "asking the GPU's architecture");
    check(driver().device_attribute(&minor, ortolan::cuda::kMinor, device.id()), "asking the GPU's architecture");
    check(driver().device_attribute(multiprocessors, ortolan::cuda::kMultiprocessors, device.id()),
          "counting multiprocessors");
    *architecture = major * 10 + minor;
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_memory(int64_t number, size_t* free, size_t* total) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().memory_info(free, total), "asking for the GPU's memory");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_add_kernel(int64_t number, const char* key, const char* entry,
                                                   const char* arguments, int warps, int shared, int64_t rows,
                                                   int64_t columns, int count, const char** names, const int* values,
                                                   const void* image) noexcept {
  return guarded([&] {
    ortolan::cuda::Kernel kernel{key, entry, arguments, {}, warps, shared, rows, columns, nullptr};
    for (int i = 0; i < count; ++i) kernel.constants[names[i]] = values[i];
    entered(number).add(std::move(kernel), image);
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_allocate(int64_t number, size_t bytes, Address* address) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().allocate(address, bytes), "allocating " + std::to_string(bytes) + " bytes");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_release(int64_t number, Address address) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().release(address), "releasing memory");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_allocate_host(int64_t number, size_t bytes, void** address) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().allocate_host(address, bytes, 0), "pinning " + std::to_string(bytes) + " bytes of host memory");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_release_host(int64_t number, void* address) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().release_host(address), "releasing pinned memory");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_to_device(int64_t number, Address target, const void* source,
                                                  size_t bytes) noexcept {
  return guarded([&] {
    check(driver().copy_to_device(target, source, bytes, entered(number).stream()), "copying to the GPU");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_to_host(int64_t number, void* target, Address source, size_t bytes) noexcept {
  return guarded(
      [&] { check(driver().copy_to_host(target, source, bytes, entered(number).stream()), "copying from the GPU"); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_copy(int64_t number, Address target, Address source, size_t bytes) noexcept {
  return guarded(
      [&] { check(driver().copy_within(target, source, bytes, entered(number).stream()), "copying on the GPU"); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_fill(int64_t number, Address target, unsigned char value,
                                             size_t bytes) noexcept {
  return guarded([&] { check(driver().fill(target, value, bytes, entered(number).stream()), "filling memory"); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_synchronize(int64_t number) noexcept {
  return guarded([&] { check(driver().stream_synchronize(entered(number).stream()), "waiting for the GPU"); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_event(int64_t number, void** event) noexcept {
  return guarded([&] {
    const auto& device = entered(number);
    if (!*event) check(driver().event_create(event, 0), "creating an event");
    check(driver().event_record(*event, device.stream()), "recording an event");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_elapsed(int64_t number, void* start, void* end, float* milliseconds) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().event_synchronize(end), "waiting for an event");
    check(driver().event_elapsed(milliseconds, start, end), "timing events");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_release_event(int64_t number, void* event) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().event_destroy(event), "releasing an event");
  });
}

ORTOLAN_EXPORT const char* ortolan_cuda_sample(int64_t number, const ortolan::cuda::SampleCall* call) noexcept {
  return guarded([&] { ortolan::cuda::sample(entered(number), *call); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_reserve_sample(int64_t number, int64_t rows, int64_t columns) noexcept {
  return guarded([&] { ortolan::cuda::reserve_sample(entered(number), rows, columns); });
}

ORTOLAN_EXPORT const char* ortolan_cuda_feed(int64_t number, Address input_ids, Address token_source, Address ids,
                                             int64_t tokens) noexcept {
  return guarded([&] { ortolan::cuda::feed(entered(number), input_ids, token_source, ids, tokens); });
}

// Waits until what was queued before an event is done.
ORTOLAN_EXPORT const char* ortolan_cuda_await(int64_t number, void* event) noexcept {
  return guarded([&] {
    entered(number);
    check(driver().event_synchronize(event), "waiting for an event");
  });
}
