// Checked calls into ONNX Runtime: every status becomes a Failure, every tensor a plain view.
#pragma once

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>

#include "failure.h"
#include "ort_abi.h"

namespace ortolan {

class Api {
 public:
  explicit Api(const OrtApi* table = nullptr) : table_(reinterpret_cast<void* const*>(table)) {}

  // The function in a slot; `Function` is its C type.
  template <typename Function>
  Function* function(abi::Slot slot) const {
    return reinterpret_cast<Function*>(table_[slot]);
  }

  // Calls a function that returns a status; throws Failure with ORT's text, led by `what`.
  template <typename... Arguments>
  void call(const std::string& what, abi::Slot slot, Arguments... arguments) const {
    call_of(what.c_str(), "", slot, arguments...);
  }
  // The same without making a string: the text is led by `what` and `name`.
  template <typename... Arguments>
  void call_of(const char* what, const char* name, abi::Slot slot, Arguments... arguments) const {
    OrtStatus* status = function<OrtStatus*(Arguments...)>(slot)(arguments...);
    if (status) fail(what, name, status);
  }

  [[noreturn]] void fail(const char* what, const char* name, OrtStatus* status) const;
  OrtStatus* status(const std::exception& error) const;
  void release(OrtStatus* status) const { function<void(OrtStatus*)>(abi::kReleaseStatus)(status); }

 private:
  void* const* table_;
};

// The sizes of a tensor's axes, without memory of its own: kernels look at many in every call.
class Shape {
 public:
  static constexpr size_t kMostAxes = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    for (int64_t size : sizes) push_back(size);
  }

  size_t size() const { return axes_; }
  bool empty() const { return axes_ == 0; }
  int64_t operator[](size_t axis) const { return sizes_[axis]; }
  int64_t& back() { return sizes_[axes_ - 1]; }
  int64_t back() const { return sizes_[axes_ - 1]; }
  const int64_t* data() const { return sizes_; }
  // Throws where there are kMostAxes already.
  void push_back(int64_t size);
  int64_t count() const;
  bool operator==(const Shape& other) const;
  bool operator!=(const Shape& other) const { return !(*this == other); }

 private:
  int64_t sizes_[kMostAxes] = {};
  size_t axes_ = 0;
};

// A view of a tensor's memory; `present` is false for an optional input that the node leaves out.
struct Tensor {
  bool present = false;
  void* data = nullptr;
  Shape shape;
  int64_t count = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

std::string shape_text(const Shape& shape);

// The tensor of a value; `what` leads the text of a Failure.
Tensor tensor_of(const Api& api, const OrtValue* value, const char* op, const char* name);

// Attributes of a node while its kernel is made.
class NodeInfo {
 public:
  NodeInfo(const Api& api, const OrtKernelInfo* info, std::string op)
      : api_(api), info_(info), op_(std::move(op)) {}

  // The same node seen through names that begin with `prefix`: attributes of one of several weights.
  NodeInfo under(const char* prefix) const {
    NodeInfo info = *this;
    info.prefix_ += prefix;
    return info;
  }
  // A name as the node has it.
  std::string named(const char* name) const { return prefix_ + name; }

  int64_t integer(const char* name) const;
  int64_t integer(const char* name, int64_t otherwise) const { return has(name) ? integer(name) : otherwise; }
  float real(const char* name) const;
  float real(const char* name, float otherwise) const { return has(name) ? real(name) : otherwise; }
  std::string text(const char* name, const char* otherwise) const;
  // An input that is an initialiser of the graph; not present where it is computed, given to a run, or left out.
  Tensor constant(size_t index, const char* name) const;
  // Throws with the attribute's name: "op: attribute name <problem>."
  [[noreturn]] void refuse(const char* name, const std::string& problem) const;

 private:
  bool has(const char* name) const;
  std::string attribute(const char* name) const { return op_ + ": attribute " + named(name); }

  const Api& api_;
  const OrtKernelInfo* info_;
  std::string op_;
  std::string prefix_;
};

// One call of a kernel.
class Call {
 public:
  Call(const Api& api, OrtKernelContext* context, const char* op);

  Tensor optional_input(size_t index, const char* name) const;
  Tensor input(size_t index, const char* name) const;
  Tensor output(size_t index, const char* name, const Shape& shape) const;
  // An output that must lie in the memory of `source`, so that nothing is copied.
  void in_place(size_t index, const char* name, const Tensor& source) const;
  [[noreturn]] void refuse(const std::string& problem) const;
  // `known` where it is present, else the input of this call.
  Tensor input(const Tensor& known, size_t index, const char* name) const {
    return known.present ? known : input(index, name);
  }
  Tensor optional_input(const Tensor& known, size_t index, const char* name) const {
    return known.present ? known : optional_input(index, name);
  }
  // The stream that a GPU provider's kernels are launched on.
  void* stream() const;

  // Runs body(i) for i in [0, total) on ORT's thread pool, each index taken by the next free thread. The first
  // exception is thrown again here, after all have ended.
  template <typename Body>
  void parallel_for(size_t total, Body&& body) const {
    if (total == 1) return body(size_t{0});
    if (total > 0)
      run_parallel(
          total, [](void* state, size_t index) { (*static_cast<std::remove_reference_t<Body>*>(state))(index); },
          &body);
  }

  // As parallel_for where `share`, else on this thread.
  template <typename Body>
  void for_each(size_t total, bool share, Body&& body) const {
    if (share) return parallel_for(total, body);
    for (size_t i = 0; i < total; ++i) body(i);
  }

 private:
  void run_parallel(size_t total, void (*body)(void*, size_t), void* state) const;

  const Api& api_;
  OrtKernelContext* context_;
  const char* op_;
  size_t inputs_ = 0;  // of the node; optional ones at the end may be left out
};

}  // namespace ortolan
