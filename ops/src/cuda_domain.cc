#include "cuda_domain.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda_attention.h"
#include "cuda_elementwise.h"
#include "cuda_experts.h"
#include "cuda_linear.h"

namespace ortolan::cuda {
namespace {

template <typename Kernel>
using Op = CustomOp<Kernel, Session>;

class Domain {
 public:
  Domain(const OrtApi* table, Device& device, abi::ElementType type)
      : session_{device, type},
        rms_norm_(table, session_),
        add_rms_norm_(table, session_),
        gated_activation_(table, session_),
        linear_(table, session_),
        logits_(table, session_),
        quant_matmul_(table, session_),
        quant_logits_(table, session_),
        quant_add_norm_(table, session_),
        quant_gather_(table, session_),
        experts_(table, session_),
        quant_experts_(table, session_),
        paged_attention_(table, session_),
        int8_attention_(table, session_) {
    const Api api(table);
    api.call("ai.ortolan: creating the domain", abi::kCreateCustomOpDomain, kDomainName, &domain_);
    const OrtCustomOp* ops[] = {&rms_norm_,     &add_rms_norm_, &gated_activation_, &linear_,
                                &logits_,       &quant_matmul_, &quant_logits_,     &quant_add_norm_,
                                &quant_gather_, &experts_,      &quant_experts_,    &paged_attention_,
                                &int8_attention_};
    for (const OrtCustomOp* op : ops)
      api.call("ai.ortolan: adding an operator", abi::kCustomOpDomainAdd, domain_, op);
  }

  OrtCustomOpDomain* handle() const { return domain_; }

 private:
  const Session session_;
  Op<RMSNorm> rms_norm_;
  Op<AddRMSNorm> add_rms_norm_;
  Op<GatedActivation> gated_activation_;
  Op<Linear<false>> linear_;
  Op<Linear<true>> logits_;
  Op<QuantMatMul<false>> quant_matmul_;
  Op<QuantMatMul<true>> quant_logits_;
  Op<QuantMatMulAddRMSNorm> quant_add_norm_;
  Op<QuantGather> quant_gather_;
  Op<Experts<false>> experts_;
  Op<Experts<true>> quant_experts_;
  Op<PagedAttention<false>> paged_attention_;
  Op<PagedAttention<true>> int8_attention_;
  OrtCustomOpDomain* domain_ = nullptr;
};

}  // namespace

OrtCustomOpDomain* domain_of(const OrtApi* table, int64_t device, const std::string& type) {
  if (type != "float16" && type != "bfloat16")
    throw Failure("ortolan.cuda.type: activations cannot be '" + type + "'. Choose float16 or bfloat16.");
  const abi::ElementType element = type == "float16" ? abi::kFloat16 : abi::kBfloat16;
  static std::mutex mutex;
  static auto* domains = new std::map<std::pair<int64_t, int>, std::unique_ptr<Domain>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Domain>& domain = (*domains)[{device, element}];
  if (!domain) domain = std::make_unique<Domain>(table, device_of(device), element);
  return domain->handle();
}

}  // namespace ortolan::cuda
