// The CUDA driver's functions that this library calls, found by dlopen: nothing of CUDA is needed to build it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ortolan::cuda {

// Opaque handles and plain numbers of the driver API (CUDA Driver API reference manual).
using Result = int;
using DeviceId = int;
using Address = uint64_t;
using Context = void*;
using Module = void*;
using Function = void*;
using Stream = void*;
using Event = void*;

enum DeviceAttribute : int { kMultiprocessors = 16, kMajor = 75, kMinor = 76, kSharedMemoryOptIn = 97 };
constexpr int kMaxDynamicSharedMemory = 8;  // attribute of a function
constexpr int kProgrammaticSerialization = 6;  // attribute of a launch
constexpr unsigned kNonBlocking = 1;        // flag of a stream
constexpr Result kOutOfMemory = 2;

// One attribute of a launch and its value, of which the driver reads as much as the attribute has.
struct LaunchAttribute {
  int id;
  int padding;
  int value[16];
};

// How a kernel is launched.
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// One table a process. Every member is a function of the driver under its own name.
struct Driver {
  Result (*init)(unsigned flags);
  Result (*error_name)(Result, const char**);
  Result (*error_text)(Result, const char**);
  Result (*device_count)(int*);
  Result (*device_get)(DeviceId*, int ordinal);
  Result (*device_name)(char*, int length, DeviceId);
  Result (*device_attribute)(int*, int attribute, DeviceId);
  Result (*primary_retain)(Context*, DeviceId);
  Result (*primary_release)(DeviceId);
  Result (*set_current)(Context);
  Result (*memory_info)(size_t* free, size_t* total);
  Result (*allocate)(Address*, size_t);
  Result (*release)(Address);
  Result (*allocate_host)(void**, size_t, unsigned flags);
  Result (*release_host)(void*);
  Result (*copy_to_device)(Address, const void*, size_t, Stream);
  Result (*copy_to_host)(void*, Address, size_t, Stream);
  Result (*copy_within)(Address, Address, size_t, Stream);
  Result (*fill)(Address, unsigned char, size_t, Stream);
  Result (*stream_create)(Stream*, unsigned flags);
  Result (*stream_destroy)(Stream);
  Result (*stream_synchronize)(Stream);
  Result (*event_create)(Event*, unsigned flags);
  Result (*event_destroy)(Event);
  Result (*event_record)(Event, Stream);
  Result (*event_synchronize)(Event);
  Result (*event_elapsed)(float*, Event, Event);
  Result (*module_load)(Module*, const void* image);
  Result (*module_unload)(Module);
  Result (*module_function)(Function*, Module, const char*);
  Result (*function_set)(Function, int attribute, int value);
  Result (*launch)(const LaunchConfig*, Function, void** parameters, void** extra);
};

// The driver, initialised. Throws Failure where there is none, saying what to do.
const Driver& driver();

// Throws Failure with the driver's own words, led by `what`.
void check(Result result, const std::string& what);

}  // namespace ortolan::cuda
