// Makes ORT's custom-op table from a kernel class.
//
// A kernel class supplies: kName, kInputs and kOutputs (arrays of Port), kAliases, a constructor (const NodeInfo&,
// const Resources&), and compute(const Call&) const. Resources are what a provider's kernels share: the table of CPU
// kernels, or a GPU session. Exceptions become statuses here and go no further.
#pragma once

#include <cstdlib>
#include <exception>
#include <iterator>

#include "kernels.h"
#include "ort_api.h"

namespace ortolan {

struct Port {
  abi::ElementType type;
  bool optional = false;
  bool host = false;  // in host memory whatever the provider
};

// The provider whose kernels take these resources: null is the CPU's.
template <typename Resources>
struct Provider {
  static constexpr const char* kName = nullptr;
  static abi::ElementType type(const Resources&, abi::ElementType type) { return type; }
};

// An input whose memory becomes an output's.
struct Alias {
  int input;
  int output;
};

template <typename Kernel, typename Resources = Kernels>
class CustomOp : public OrtCustomOp {
 public:
  CustomOp(const OrtApi* table, const Resources& resources) : OrtCustomOp{}, api_(table), resources_(resources) {
    version = abi::kApiVersion;
    GetName = [](const OrtCustomOp*) { return Kernel::kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return Provider<Resources>::kName; };
    GetInputTypeCount = [](const OrtCustomOp*) { return std::size(Kernel::kInputs); };
    GetOutputTypeCount = [](const OrtCustomOp*) { return std::size(Kernel::kOutputs); };
    GetInputType = [](const OrtCustomOp* op, size_t i) -> int { return type(op, Kernel::kInputs[i]); };
    GetOutputType = [](const OrtCustomOp* op, size_t i) -> int { return type(op, Kernel::kOutputs[i]); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t i) -> int {
      return Kernel::kInputs[i].optional ? abi::kOptional : abi::kRequired;
    };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) -> int {
      return Kernel::kOutputs[i].optional ? abi::kOptional : abi::kRequired;
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t i) -> int {
      return Kernel::kInputs[i].host && Provider<Resources>::kName ? abi::kCpuInput : abi::kDefaultMemory;
    };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return 1; };
    CreateKernelV2 = create;
    KernelComputeV2 = compute;
    KernelDestroy = [](void* kernel) { delete static_cast<Bound*>(kernel); };
    GetMayInplace = [](int**, int**) -> size_t { return 0; };
    ReleaseMayInplace = release;
    GetAliasMap = alias_map;
    ReleaseAliasMap = release;
  }

 private:
  // A kernel and the API table that its calls go through.
  struct Bound {
    Api api;
    Kernel kernel;
  };

  static int type(const OrtCustomOp* op, const Port& port) {
    return Provider<Resources>::type(static_cast<const CustomOp*>(op)->resources_, port.type);
  }

  static OrtStatus* create(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info,
                           void** kernel) noexcept {
    const auto* self = static_cast<const CustomOp*>(op);
    try {
      *kernel = new Bound{self->api_, Kernel(NodeInfo(self->api_, info, Kernel::kName), self->resources_)};
      return nullptr;
    } catch (const std::exception& error) {
      return self->api_.status(error);
    }
  }

  static OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
    const auto* bound = static_cast<const Bound*>(kernel);
    try {
      bound->kernel.compute(Call(bound->api, context, Kernel::kName));
      return nullptr;
    } catch (const std::exception& error) {
      return bound->api.status(error);
    }
  }

  static size_t alias_map(int** inputs, int** outputs) {
    const size_t count = std::size(Kernel::kAliases);
    *inputs = static_cast<int*>(std::malloc(count * sizeof(int)));
    *outputs = static_cast<int*>(std::malloc(count * sizeof(int)));
    if (!*inputs || !*outputs) return 0;
    for (size_t i = 0; i < count; ++i) {
      (*inputs)[i] = Kernel::kAliases[i].input;
      (*outputs)[i] = Kernel::kAliases[i].output;
    }
    return count;
  }

  static void release(int* inputs, int* outputs) {
    std::free(inputs);
    std::free(outputs);
  }

  Api api_;
  const Resources& resources_;
};

}  // namespace ortolan
