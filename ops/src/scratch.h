// Memory for a kernel's intermediate results, borrowed from a pool of the thread's own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ortolan {

// A borrowed buffer of floats, not cleared, aligned to 64 bytes; it goes back to the pool when destroyed, by the
// thread that borrowed it. A thread keeps what it once allocated: after the largest step memory stays flat.
class Scratch {
 public:
  explicit Scratch(size_t floats);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // The next `count` floats of the buffer, aligned to 64 bytes.
  float* take(size_t count);
  // What `count` floats need of the buffer, alignment included.
  static size_t room(size_t count) { return (count + 15) / 16 * 16; }

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  struct Buffer {
    std::unique_ptr<float, Free> memory;
    size_t floats = 0;
  };
  using Pool = std::vector<Buffer>;
  static Pool& pool();

  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace ortolan
