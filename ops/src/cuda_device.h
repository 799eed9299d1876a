// One GPU as this process uses it: primary context, stream, compiled kernels, scratch memory, cuBLAS.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda_blas.h"
#include "cuda_driver.h"

namespace ortolan::cuda {

struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

// A kernel that was compiled ahead of time. arguments: a letter each, p pointer, i int32, f float; a capital one
// must be a multiple of 16. rows, columns: it serves up to so many rows and from so many columns on.
struct Kernel {
  std::string key;
  std::string entry;
  std::string arguments;
  std::map<std::string, int> constants;
  int warps = 4;
  int shared = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  Function function = nullptr;
  bool dependent = false;  // starts before the kernel ahead of it has ended, and waits by itself

  // A constant that it was compiled with. Throws Failure for one that it has not.
  int constant(const char* name) const;
};

// The kernels of one key, in the order in which they were added.
using Variants = std::vector<std::unique_ptr<Kernel>>;

class Device {
 public:
  explicit Device(int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void make_current() const;
  Stream stream() const { return stream_; }
  DeviceId id() const { return id_; }

  // Adds a kernel from a cubin; `kernel.function` is filled in.
  void add(Kernel kernel, const void* image);
  // The first kernel of a key that fits rows and columns. Throws Failure when the bundle has none.
  const Kernel& find(const std::string& key, int64_t rows = 1, int64_t columns = 1) const;
  // The same, but null when the bundle has none.
  const Kernel* known(const std::string& key, int64_t rows, int64_t columns) const;

  // Scratch memory for one operator's work; the next operator on the stream may overwrite it. It grows when asked
  // for more, outside of graph capture, and older memory stays, because captured graphs use it.
  char* scratch(size_t bytes) const;
  // Numbers that are zero before and after each kernel that uses them. Throws Failure for more than there are.
  int32_t* counters(int64_t count) const;
  const Blas& blas() const { return *blas_; }

  // Launches on `stream`. Throws Failure with the kernel's name and arguments when they do not fit it.
  template <typename... Arguments>
  void launch(const Kernel& kernel, Stream stream, Grid grid, Arguments... arguments) const {
    const std::array<std::pair<char, int64_t>, sizeof...(Arguments)> given{describe(arguments)...};
    expect(kernel, given.data(), given.size());
    void* none = nullptr;
    // After its own arguments a kernel of Triton's takes two pointers to scratch memory, which ours do not use.
    std::array<void*, sizeof...(Arguments) + 2> parameters{static_cast<void*>(&arguments)..., &none, &none};
    submit(kernel, stream, grid, parameters.data());
  }

 private:
  // Everything that was taken, the context last.
  void give_back() noexcept;
  template <typename T>
  static std::pair<char, int64_t> describe(T value) {
    if constexpr (std::is_pointer_v<T>) {
      return {'p', static_cast<int64_t>(reinterpret_cast<uintptr_t>(value))};
    } else if constexpr (std::is_same_v<T, float>) {
      return {'f', 0};
    } else {
      static_assert(std::is_same_v<T, int32_t>);
      return {'i', value};
    }
  }
  static void expect(const Kernel& kernel, const std::pair<char, int64_t>* given, size_t count);
  static void submit(const Kernel& kernel, Stream stream, Grid grid, void** parameters);

  DeviceId id_ = 0;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
  std::vector<Module> modules_;
  std::map<std::string, Variants> kernels_;
  mutable std::vector<std::pair<Address, size_t>> scratch_;
  Address counters_ = 0;
  std::unique_ptr<Blas> blas_;
};

// The devices that are open, by the numbers that sessions name them with.
int64_t open_device(int ordinal);
void close_device(int64_t number);
// Throws Failure for a number that is not open.
Device& device_of(int64_t number);

}  // namespace ortolan::cuda
