// exp, tanh and erf over a path's vectors. Included after one vector_*.h.
//
// Polynomials are minimax fits (Lawson's iteration at Chebyshev nodes). The stated errors include the arithmetic;
// they held in a sweep over every 13th float, and tests/ops/test_gated_activation.py holds the activations to them.
#pragma once

namespace ortolan {
namespace {
namespace simd {

// Adding it rounds to whole numbers and leaves n + 127 in the low bits: 1.5 * 2^23 + 127.
constexpr float kWholeShift = 12583039.0f;

// exp(x) for x <= 0: relative error below 2^-23; exactly 0 below -87.33, where the result would be subnormal.
inline F exp_nonpositive(F x) {
  const F shift = set1(kWholeShift);
  const F t = fma(x, set1(1.44269504f), shift);
  const F n = sub(t, shift);
  // r = x - n ln 2 in two pieces; the first has 9 significant bits, so that n * piece is exact.
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.381446475e-3f);
  p = fma(p, r, set1(8.368780622e-3f));
  p = fma(p, r, set1(4.166839426e-2f));
  p = fma(p, r, set1(1.666652011e-1f));
  p = fma(p, r, set1(4.999999341e-1f));
  p = add(fma(mul(r, r), p, r), set1(1.0f));
  return if_less(x, set1(-87.33f), zero(), mul(p, power_of_low_bits(t)));
}

// 2^x for x <= 0: relative error below 2^-22.4; exactly 1 for 0, exactly 0 below -126.5. NaN stays NaN.
inline F exp2_nonpositive(F x) {
  const F shift = set1(kWholeShift);
  x = max(set1(-127.0f), x);
  const F t = add(x, shift);
  const F r = sub(x, sub(t, shift));
  F p = set1(1.326472720e-3f);
  p = fma(p, r, set1(9.671512640e-3f));
  p = fma(p, r, set1(5.550733743e-2f));
  p = fma(p, r, set1(2.402224209e-1f));
  p = fma(p, r, set1(6.931469776e-1f));
  p = fma(p, r, set1(1.0f));
  return mul(p, power_of_low_bits(t));
}

// tanh(x): relative error below 2^-22.
inline F tanh(F x) {
  const F z = mul(x, x);
  F q = set1(2.147536825e-3f);
  q = fma(q, z, set1(-8.182673862e-3f));
  q = fma(q, z, set1(2.170296711e-2f));
  q = fma(q, z, set1(-5.394720427e-2f));
  q = fma(q, z, set1(1.333320976e-1f));
  q = fma(q, z, set1(-3.333333091e-1f));
  const F near = fma(mul(q, z), x, x);
  const F e = exp_nonpositive(mul(abs(x), set1(-2.0f)));
  const F far = copy_sign(div(sub(set1(1.0f), e), add(set1(1.0f), e)), x);
  return if_less(abs(x), set1(0.625f), near, far);
}

// erf(x): absolute and relative error below 2^-22.
inline F erf(F x) {
  const F z = mul(x, x);
  F q = set1(7.889119586e-5f);
  q = fma(q, z, set1(-8.020841294e-4f));
  q = fma(q, z, set1(5.189535341e-3f));
  q = fma(q, z, set1(-2.685444459e-2f));
  q = fma(q, z, set1(1.128360018e-1f));
  q = fma(q, z, set1(-3.761262714e-1f));
  q = fma(q, z, set1(1.128379166f));
  const F near = mul(q, x);
  // 1 - exp(-x^2) * g(t), t = 1 / (1 + |x| / 2).
  const F magnitude = abs(x);
  const F t = div(set1(1.0f), fma(magnitude, set1(0.5f), set1(1.0f)));
  F g = set1(-2.308016591e-1f);
  g = fma(g, t, set1(6.366799902e-1f));
  g = fma(g, t, set1(-6.446058802e-2f));
  g = fma(g, t, set1(3.968020716e-1f));
  g = fma(g, t, set1(2.597006198e-1f));
  g = fma(g, t, set1(1.822481100e-3f));
  const F e = exp_nonpositive(mul(magnitude, sub(zero(), magnitude)));
  const F far = copy_sign(fma(sub(zero(), e), g, set1(1.0f)), x);
  return if_less(abs(x), set1(1.0f), near, far);
}

}  // namespace simd
}  // namespace
}  // namespace ortolan
