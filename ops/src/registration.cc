// The library's entry points: ORT's RegisterCustomOps, and what Python asks for by ctypes.
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "add_rms_norm.h"
#include "copy_blocks.h"
#include "custom_op.h"
#include "gated_activation.h"
#include "paged_attention.h"

#define ORTOLAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortolan {
namespace {

constexpr const char* kDomain = "ai.ortolan";
constexpr const char* kKernelsKey = "ortolan.kernels";

// All operators over one path's kernels. ORT keeps pointers into it as long as any session lives.
class Domain {
 public:
  Domain(const OrtApi* table, const Kernels& kernels)
      : gated_activation_(table, kernels),
        add_rms_norm_(table, kernels),
        copy_blocks_float_(table, kernels),
        copy_blocks_half_(table, kernels),
        paged_attention_float_(table, kernels),
        paged_attention_half_(table, kernels) {
    const Api api(table);
    api.call("ai.ortolan: creating the domain", abi::kCreateCustomOpDomain, kDomain, &domain_);
    const OrtCustomOp* ops[] = {&gated_activation_, &add_rms_norm_,          &copy_blocks_float_,
                                &copy_blocks_half_, &paged_attention_float_, &paged_attention_half_};
    for (const OrtCustomOp* op : ops)
      api.call("ai.ortolan: adding an operator", abi::kCustomOpDomainAdd, domain_, op);
  }

  OrtCustomOpDomain* handle() const { return domain_; }

 private:
  CustomOp<GatedActivation> gated_activation_;
  CustomOp<AddRMSNorm> add_rms_norm_;
  CustomOp<CopyBlocks<abi::kFloat>> copy_blocks_float_;
  CustomOp<CopyBlocks<abi::kFloat16>> copy_blocks_half_;
  CustomOp<PagedAttention<abi::kFloat>> paged_attention_float_;
  CustomOp<PagedAttention<abi::kFloat16>> paged_attention_half_;
  OrtCustomOpDomain* domain_ = nullptr;
};

// The path that the session asks for; "auto" where it asks for none.
std::string wanted_kernels(const Api& api, const OrtSessionOptions* options) {
  const std::string what = std::string("ai.ortolan: reading session entry ") + kKernelsKey;
  int has = 0;
  api.call(what, abi::kHasSessionConfigEntry, options, kKernelsKey, &has);
  if (!has) return "auto";
  size_t size = 0;
  char* none = nullptr;
  api.call(what, abi::kGetSessionConfigEntry, options, kKernelsKey, none, &size);
  std::string value(size, '\0');
  api.call(what, abi::kGetSessionConfigEntry, options, kKernelsKey, value.data(), &size);
  value.resize(size ? size - 1 : 0);  // without the terminating zero
  return value;
}

// The domain of a path, made once a process: sessions share it, and it outlives them all.
OrtCustomOpDomain* domain_of(const OrtApi* table, const Kernels& kernels) {
  static std::mutex mutex;
  static auto* domains = new std::map<const Kernels*, std::unique_ptr<Domain>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Domain>& domain = (*domains)[&kernels];
  if (!domain) domain = std::make_unique<Domain>(table, kernels);
  return domain->handle();
}

}  // namespace
}  // namespace ortolan

ORTOLAN_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  const OrtApi* table = base->GetApi(ortolan::abi::kApiVersion);
  if (!table) {
    const ortolan::Failure failure(std::string("ai.ortolan: ONNX Runtime ") + base->GetVersionString() +
                                   " is too old. Install onnxruntime 1.26 or later.");
    return ortolan::Api(base->GetApi(1)).status(failure);
  }
  const ortolan::Api api(table);
  try {
    const std::string name = ortolan::wanted_kernels(api, options);
    OrtCustomOpDomain* domain = ortolan::domain_of(table, ortolan::select_kernels(name.c_str()));
    api.call("ai.ortolan: adding the domain to the session", ortolan::abi::kAddCustomOpDomain, options, domain);
    return nullptr;
  } catch (const std::exception& error) {
    return api.status(error);
  }
}

ORTOLAN_EXPORT const char* ortolan_available_kernels() noexcept { return ortolan::available_kernels(); }

ORTOLAN_EXPORT const char* ortolan_version() noexcept { return ORTOLAN_VERSION; }
