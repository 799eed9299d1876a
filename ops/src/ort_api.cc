#include "ort_api.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace ortolan {

void Api::fail(const char* what, const char* name, OrtStatus* status) const {
  const std::string text = function<const char*(const OrtStatus*)>(abi::kGetErrorMessage)(status);
  release(status);
  throw Failure(std::string(what) + (*name ? ": " : "") + name + ": " + text, abi::kFail);
}

OrtStatus* Api::status(const std::exception& error) const {
  const auto* failure = dynamic_cast<const Failure*>(&error);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const char* text =
      memory ? "ai.ortolan: out of memory for a kernel's scratch. Run with fewer tokens a step." : error.what();
  return function<OrtStatus*(int, const char*)>(abi::kCreateStatus)(failure ? failure->code() : abi::kFail, text);
}

void Shape::push_back(int64_t size) {
  if (axes_ == kMostAxes) throw Failure("ai.ortolan: a tensor has more than 8 axes. Give one of fewer.");
  sizes_[axes_++] = size;
}

int64_t Shape::count() const {
  int64_t count = 1;
  for (size_t i = 0; i < axes_; ++i) count *= sizes_[i];
  return count;
}

bool Shape::operator==(const Shape& other) const {
  return axes_ == other.axes_ && std::equal(sizes_, sizes_ + axes_, other.sizes_);
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

Tensor tensor_of(const Api& api, const OrtValue* value, const char* op, const char* name) {
  Tensor tensor;
  tensor.present = true;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  api.call_of(op, name, abi::kGetTensorTypeAndShape, value, &info);
  const OrtTensorTypeAndShapeInfo* view = info;
  const auto release = [&] {
    api.function<void(OrtTensorTypeAndShapeInfo*)>(abi::kReleaseTensorTypeAndShapeInfo)(info);
  };
  int64_t sizes[Shape::kMostAxes];
  size_t rank = 0;
  try {
    api.call_of(op, name, abi::kGetDimensionsCount, view, &rank);
    api.call_of(op, name, abi::kGetDimensions, view, static_cast<int64_t*>(sizes), std::min(rank, Shape::kMostAxes));
  } catch (const Failure&) {
    release();
    throw;
  }
  release();
  for (size_t i = 0; i < rank; ++i) tensor.shape.push_back(i < Shape::kMostAxes ? sizes[i] : 0);
  tensor.count = tensor.shape.count();
  api.call_of(op, name, abi::kGetTensorMutableData, const_cast<OrtValue*>(value), &tensor.data);
  return tensor;
}

bool NodeInfo::has(const char* short_name) const {
  const std::string full = named(short_name);
  const char* name = full.c_str();
  // ORT reports a missing attribute and one of another kind alike: only if no kind reads, there is none.
  int64_t integer = 0;
  float real = 0.0f;
  size_t size = 0;
  OrtStatus* found[] = {api_.function<OrtStatus*(const OrtKernelInfo*, const char*, int64_t*)>(
                            abi::kKernelInfoGetAttributeInt64)(info_, name, &integer),
                        api_.function<OrtStatus*(const OrtKernelInfo*, const char*, float*)>(
                            abi::kKernelInfoGetAttributeFloat)(info_, name, &real),
                        api_.function<OrtStatus*(const OrtKernelInfo*, const char*, char*, size_t*)>(
                            abi::kKernelInfoGetAttributeString)(info_, name, nullptr, &size)};
  bool any = false;
  for (OrtStatus* status : found) {
    any = any || !status;
    if (status) api_.release(status);
  }
  return any;
}

int64_t NodeInfo::integer(const char* name) const {
  int64_t value = 0;
  api_.call(attribute(name), abi::kKernelInfoGetAttributeInt64, info_, named(name).c_str(), &value);
  return value;
}

float NodeInfo::real(const char* name) const {
  float value = 0.0f;
  api_.call(attribute(name), abi::kKernelInfoGetAttributeFloat, info_, named(name).c_str(), &value);
  return value;
}

std::string NodeInfo::text(const char* name, const char* otherwise) const {
  if (!has(name)) return otherwise;
  size_t size = 0;
  char* none = nullptr;
  api_.call(attribute(name), abi::kKernelInfoGetAttributeString, info_, named(name).c_str(), none, &size);
  std::string value(size, '\0');
  api_.call(attribute(name), abi::kKernelInfoGetAttributeString, info_, named(name).c_str(), value.data(), &size);
  value.resize(size ? size - 1 : 0);  // without the terminating zero
  return value;
}

void NodeInfo::refuse(const char* name, const std::string& problem) const {
  throw Failure(attribute(name) + " " + problem);
}

Tensor NodeInfo::constant(size_t index, const char* name) const {
  const std::string what = op_ + ": input " + name;
  size_t inputs = 0;
  api_.call(what, abi::kKernelInfoGetInputCount, info_, &inputs);
  if (index >= inputs) return {};
  int constant = 0;
  const OrtValue* value = nullptr;
  api_.call(what, abi::kKernelInfoGetConstantInput, info_, index, &constant, &value);
  if (!constant || !value) return {};
  return tensor_of(api_, value, op_.c_str(), name);
}

Call::Call(const Api& api, OrtKernelContext* context, const char* op) : api_(api), context_(context), op_(op) {
  const OrtKernelContext* view = context;
  api_.call_of(op_, "counting inputs", abi::kKernelContextGetInputCount, view, &inputs_);
}

Tensor Call::optional_input(size_t index, const char* name) const {
  if (index >= inputs_) return {};
  const OrtKernelContext* context = context_;
  const OrtValue* value = nullptr;
  api_.call_of(op_, name, abi::kKernelContextGetInput, context, index, &value);
  return value ? tensor_of(api_, value, op_, name) : Tensor{};
}

Tensor Call::input(size_t index, const char* name) const {
  Tensor tensor = optional_input(index, name);
  if (!tensor.present) refuse(std::string("input ") + name + " is missing. Give it to the node.");
  return tensor;
}

Tensor Call::output(size_t index, const char* name, const Shape& shape) const {
  Tensor tensor;
  tensor.shape = shape;
  tensor.count = shape.count();
  OrtValue* value = nullptr;
  api_.call_of(op_, name, abi::kKernelContextGetOutput, context_, index, shape.data(), shape.size(), &value);
  if (!value) refuse(std::string("output ") + name + " is not connected. Name all outputs of the node.");
  tensor.present = true;
  api_.call_of(op_, name, abi::kGetTensorMutableData, value, &tensor.data);
  return tensor;
}

void Call::in_place(size_t index, const char* name, const Tensor& source) const {
  const Tensor target = output(index, name, source.shape);
  if (target.data == source.data || source.count == 0) return;
  refuse(
      std::string("output ") + name +
      " lies in other memory than its input. The cache is updated in place: bind the same OrtValue to the graph's "
      "cache input and cache output.");
}

void* Call::stream() const {
  const OrtKernelContext* context = context_;
  void* stream = nullptr;
  api_.call(std::string(op_) + ": stream", abi::kKernelContextGetGpuComputeStream, context, &stream);
  return stream;
}

void Call::refuse(const std::string& problem) const { throw Failure(std::string(op_) + ": " + problem); }

void Call::run_parallel(size_t total, void (*body)(void*, size_t), void* state) const {
  struct Guarded {
    void (*body)(void*, size_t);
    void* state;
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  } guarded{body, state, {}, {}};
  void (*guard)(void*, size_t) = [](void* opaque, size_t index) {
    auto* self = static_cast<Guarded*>(opaque);
    try {
      self->body(self->state, index);
    } catch (...) {
      if (!self->failed.exchange(true)) self->error = std::current_exception();
    }
  };
  // As many batches as indices, so that threads take one at a time.
  const OrtKernelContext* context = context_;
  void* opaque = &guarded;
  api_.call_of(op_, "thread pool", abi::kKernelContextParallelFor, context, guard, total, total, opaque);
  if (guarded.error) std::rethrow_exception(guarded.error);
}

}  // namespace ortolan
