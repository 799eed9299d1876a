// The library's entry points: ORT's RegisterCustomOps, and what Python asks for by ctypes.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "add_rms_norm.h"
#include "copy_blocks.h"
#include "cuda_domain.h"
#include "custom_op.h"
#include "experts.h"
#include "gated_activation.h"
#include "paged_attention.h"
#include "quant_gather.h"
#include "quant_matmul.h"
#include "sample.h"

#define ORTOLAN_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortolan {
namespace {

constexpr const char* kKernelsKey = "ortolan.kernels";
constexpr const char* kActivationsKey = "ortolan.activations";
constexpr const char* kCudaKey = "ortolan.cuda";
constexpr const char* kCudaTypeKey = "ortolan.cuda.type";

// The table of a path, told how to multiply by quantised weights.
Kernels with_activations(const Kernels& kernels, bool exact) {
  Kernels chosen = kernels;
  chosen.exact = exact;
  return chosen;
}

// All operators over one path's kernels. ORT keeps pointers into it as long as any session lives.
class Domain {
 public:
  Domain(const OrtApi* table, const Kernels& kernels, bool exact)
      : kernels_(with_activations(kernels, exact)),
        gated_activation_(table, kernels_),
        add_rms_norm_(table, kernels_),
        copy_blocks_float_(table, kernels_),
        copy_blocks_half_(table, kernels_),
        paged_attention_float_(table, kernels_),
        paged_attention_half_(table, kernels_),
        quant_matmul_(table, kernels_),
        quant_gather_(table, kernels_),
        experts_plain_(table, kernels_),
        experts_quantised_(table, kernels_),
        experts_plain_down_(table, kernels_),
        experts_plain_gate_up_(table, kernels_),
        sample_(table, kernels_) {
    const Api api(table);
    api.call("ai.ortolan: creating the domain", abi::kCreateCustomOpDomain, kDomainName, &domain_);
    const OrtCustomOp* ops[] = {&gated_activation_,      &add_rms_norm_,         &copy_blocks_float_,
                                &copy_blocks_half_,      &paged_attention_float_, &paged_attention_half_,
                                &quant_matmul_,          &quant_gather_,         &experts_plain_,
                                &experts_quantised_,     &experts_plain_down_,   &experts_plain_gate_up_,
                                &sample_};
    for (const OrtCustomOp* op : ops)
      api.call("ai.ortolan: adding an operator", abi::kCustomOpDomainAdd, domain_, op);
  }

  OrtCustomOpDomain* handle() const { return domain_; }

 private:
  const Kernels kernels_;
  CustomOp<GatedActivation> gated_activation_;
  CustomOp<AddRMSNorm> add_rms_norm_;
  CustomOp<CopyBlocks<abi::kFloat>> copy_blocks_float_;
  CustomOp<CopyBlocks<abi::kFloat16>> copy_blocks_half_;
  CustomOp<PagedAttention<abi::kFloat>> paged_attention_float_;
  CustomOp<PagedAttention<abi::kFloat16>> paged_attention_half_;
  CustomOp<QuantMatMul> quant_matmul_;
  CustomOp<QuantGather> quant_gather_;
  CustomOp<Experts<abi::kFloat, abi::kFloat>> experts_plain_;
  CustomOp<Experts<abi::kUint8, abi::kUint8>> experts_quantised_;
  CustomOp<Experts<abi::kUint8, abi::kFloat>> experts_plain_down_;
  CustomOp<Experts<abi::kFloat, abi::kUint8>> experts_plain_gate_up_;
  CustomOp<Sample> sample_;
  OrtCustomOpDomain* domain_ = nullptr;
};

// An entry of the session's configuration; `otherwise` where it has none of that key.
std::string session_entry(const Api& api, const OrtSessionOptions* options, const char* key, const char* otherwise) {
  const std::string what = std::string("ai.ortolan: reading session entry ") + key;
  int has = 0;
  api.call(what, abi::kHasSessionConfigEntry, options, key, &has);
  if (!has) return otherwise;
  size_t size = 0;
  char* none = nullptr;
  api.call(what, abi::kGetSessionConfigEntry, options, key, none, &size);
  std::string value(size, '\0');
  api.call(what, abi::kGetSessionConfigEntry, options, key, value.data(), &size);
  value.resize(size ? size - 1 : 0);  // without the terminating zero
  return value;
}

// Whether the session asks for activations in float32.
bool wants_exact(const Api& api, const OrtSessionOptions* options) {
  const std::string value = session_entry(api, options, kActivationsKey, "int8");
  if (value == "float32") return true;
  if (value == "int8") return false;
  throw Failure(std::string(kActivationsKey) + ": there are no activations in '" + value +
                "'. Choose int8 or float32.");
}

// The domain of a path, made once a process: sessions share it, and it outlives them all.
OrtCustomOpDomain* domain_of(const OrtApi* table, const Kernels& kernels, bool exact) {
  static std::mutex mutex;
  static auto* domains = new std::map<std::pair<const Kernels*, bool>, std::unique_ptr<Domain>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Domain>& domain = (*domains)[{&kernels, exact}];
  if (!domain) domain = std::make_unique<Domain>(table, kernels, exact);
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
    const std::string device = ortolan::session_entry(api, options, ortolan::kCudaKey, "");
    OrtCustomOpDomain* domain = nullptr;
    if (device.empty()) {
      const std::string name = ortolan::session_entry(api, options, ortolan::kKernelsKey, "auto");
      domain = ortolan::domain_of(table, ortolan::select_kernels(name.c_str()), ortolan::wants_exact(api, options));
    } else {
      const std::string type = ortolan::session_entry(api, options, ortolan::kCudaTypeKey, "bfloat16");
      domain = ortolan::cuda::domain_of(table, std::stoll(device), type);
    }
    api.call("ai.ortolan: adding the domain to the session", ortolan::abi::kAddCustomOpDomain, options, domain);
    return nullptr;
  } catch (const std::exception& error) {
    return api.status(error);
  }
}

ORTOLAN_EXPORT const char* ortolan_available_kernels() noexcept { return ortolan::available_kernels(); }

ORTOLAN_EXPORT const char* ortolan_version() noexcept { return ORTOLAN_VERSION; }
