// Gated activations, RMS norms, head transforms and half precision over a path's vectors.
// Included after one vector_*.h and path_math.h.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

using simd::F;
using simd::kWidth;

// Asks for a line that is needed soon, as far as the second cache: requests of the first are so few at a time that
// they read memory at half its speed.
inline void ask_for(const void* line) { __builtin_prefetch(line, 0, 2); }

// The tail of a row goes through the same vector function as the rest, so that a value's bits do not depend on
// where in a row it lies.
struct Padded {
  alignas(64) float lane[kWidth];
  Padded(const float* in, size_t count) {
    for (size_t i = 0; i < static_cast<size_t>(kWidth); ++i) lane[i] = i < count ? in[i] : 0.0f;
  }
  explicit Padded(F x) { simd::store(lane, x); }
  F vector() const { return simd::load(lane); }
  void copy_to(float* out, size_t count) const {
    for (size_t i = 0; i < count; ++i) out[i] = lane[i];
  }
};

inline F silu(F x) {
  // exp only of non-positive arguments: sigmoid(x) = e / (1 + e) for x < 0 and 1 / (1 + e) otherwise.
  const F one = simd::set1(1.0f);
  const F e = simd::exp_nonpositive(simd::sub(simd::zero(), simd::abs(x)));
  const F top = simd::if_less(x, simd::zero(), e, one);
  return simd::mul(x, simd::mul(top, simd::reciprocal(simd::add(one, e))));
}

inline F gelu(F x) {
  const F half = simd::mul(x, simd::set1(0.5f));
  return simd::fma(half, simd::erf(simd::mul(x, simd::set1(0.707106781f))), half);
}

inline F gelu_tanh(F x) {
  // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  const F half = simd::mul(x, simd::set1(0.5f));
  const F cubic = simd::fma(simd::mul(x, x), simd::set1(0.044715f), simd::set1(1.0f));
  const F inner = simd::mul(simd::mul(x, cubic), simd::set1(0.797884561f));
  return simd::fma(half, simd::tanh(inner), half);
}

template <F (*kActivation)(F)>
void multiply_gate(const float* gate, const float* up, float* out, size_t count) {
  size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    simd::store(out + i, simd::mul(kActivation(simd::load(gate + i)), simd::load(up + i)));
  }
  if (i < count) {
    const Padded g(gate + i, count - i), u(up + i, count - i);
    Padded(simd::mul(kActivation(g.vector()), u.vector())).copy_to(out + i, count - i);
  }
}

inline F activate(Activation kind, F x) {
  return kind == Activation::kSilu ? silu(x) : kind == Activation::kGelu ? gelu(x) : gelu_tanh(x);
}

void gated_activation(Activation kind, const float* gate, const float* up, float* out, size_t count) {
  if (kind == Activation::kSilu) return multiply_gate<silu>(gate, up, out, count);
  if (kind == Activation::kGelu) return multiply_gate<gelu>(gate, up, out, count);
  return multiply_gate<gelu_tanh>(gate, up, out, count);
}

// 1 / sqrt(mean(x^2) + epsilon). Four running sums hide the latency of the additions.
float inverse_rms(const float* x, size_t count, float epsilon) {
  F total[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  size_t i = 0;
  for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const F v = simd::load(x + i + k * kWidth);
      total[k] = simd::fma(v, v, total[k]);
    }
  }
  for (; i + kWidth <= count; i += kWidth) {
    const F v = simd::load(x + i);
    total[0] = simd::fma(v, v, total[0]);
  }
  if (i < count) {
    const F v = Padded(x + i, count - i).vector();
    total[1] = simd::fma(v, v, total[1]);
  }
  const F sum = simd::add(simd::add(total[0], total[1]), simd::add(total[2], total[3]));
  return 1.0f / __builtin_sqrtf(simd::sum(sum) / static_cast<float>(count) + epsilon);
}

// y = x * factor * weight, or y = x * factor without a weight.
void scale_row(const float* x, const float* weight, float factor, float* y, size_t count) {
  const F f = simd::set1(factor);
  size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const F v = simd::mul(simd::load(x + i), f);
    simd::store(y + i, weight ? simd::mul(v, simd::load(weight + i)) : v);
  }
  for (; i < count; ++i) y[i] = weight ? x[i] * factor * weight[i] : x[i] * factor;
}

void rms_norm(const float* x, const float* weight, float epsilon, float* out, size_t count) {
  scale_row(x, weight, inverse_rms(x, count, epsilon), out, count);
}

void add_rms_norm(const float* x, const float* residual, const float* weight, float epsilon, float* y, float* sum,
                  size_t count) {
  size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    simd::store(sum + i, simd::add(simd::load(x + i), simd::load(residual + i)));
  }
  for (; i < count; ++i) sum[i] = x[i] + residual[i];
  scale_row(sum, weight, inverse_rms(sum, count, epsilon), y, count);
}

void rotate(const HeadTransform& how, float* head) {
  const int half = how.rotary_dims / 2;
  if (how.interleaved) {
    for (int i = 0; i < half; ++i) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = a * how.cosine[i] - b * how.sine[i];
      head[2 * i + 1] = b * how.cosine[i] + a * how.sine[i];
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * how.cosine[i] - b * how.sine[i];
    head[half + i] = b * how.cosine[i] + a * how.sine[i];
  }
}

void transform_head(const HeadTransform& how, const float* in, float* out, int head_dim) {
  const size_t count = static_cast<size_t>(head_dim);
  if (how.norm_weight) {
    scale_row(in, how.norm_weight, inverse_rms(in, count, how.norm_epsilon), out, count);
  } else {
    __builtin_memcpy(out, in, count * sizeof(float));
  }
  if (how.cosine) rotate(how, out);
  if (how.factor != 1.0f) scale_row(out, nullptr, how.factor, out, count);
}

void to_half(const float* in, uint16_t* out, int count) {
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) simd::store_half(out + i, simd::load(in + i));
  if (i < count) {
    uint16_t tail[kWidth];
    simd::store_half(tail, Padded(in + i, static_cast<size_t>(count - i)).vector());
    for (int k = 0; i < count; ++i, ++k) out[i] = tail[k];
  }
}

void to_float(const uint16_t* in, float* out, int count) {
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) simd::store(out + i, simd::load_half(in + i));
  if (i < count) {
    uint16_t tail[kWidth] = {};
    for (int k = 0; k < count - i; ++k) tail[k] = in[i + k];
    Padded(simd::load_half(tail)).copy_to(out + i, static_cast<size_t>(count - i));
  }
}

}  // namespace
}  // namespace ortolan
