// exp, tanh and the error function's tail on vectors.
//
// Polynomials are Chebyshev interpolations in double precision, rounded to float; the bounds are what the tests demand
// of them against double precision over their whole range.
#pragma once

#include "simd.h"

namespace kvplan {

// e^x within 2 ulp. Below -87.33 (where float32 has only denormals) the result is 0; above 88.37 infinity.
// x = n ln 2 + r with |r| <= ln 2 / 2, e^r = 1 + r + r^2 P(r), and 2^n goes into the exponent bits.
KVPLAN_INLINE Floats exp(Floats x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats clamped = x > 89.0f ? splat(89.0f) : x;
  const Floats shifted = clamped * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact
  Floats tail = splat(0.0013926184f);
  tail = tail * r + 0.0083631789f;
  tail = tail * r + 0.0416665561f;
  tail = tail * r + 0.1666657627f;
  tail = tail * r + 0.5f;
  const Floats power = (tail * r) * r + r + 1.0f;
  // unsigned, because lanes that nobody reads hold anything: there the sum wraps around
  const Words exponent = (reinterpret_cast<Words>(shifted) + (127u - 0x4b400000u)) << 23;
  const Floats result = power * reinterpret_cast<Floats>(exponent);
  return select(x < -87.33f, Floats{}, select(x == x, result, x));
}

// 2^x for x <= 0, to 3e-6 of itself; 0 below -126. For weights of a softmax that are rounded to 16 bits.
// x = n + f with |f| <= 1/2, and 2^f = 1 + f P(f) with the least relative error there.
KVPLAN_INLINE Floats exp2_of_negative(Floats x) {
  constexpr float kRound = 12582912.0f + 127.0f;  // as in exp(); the low bits become the exponent of 2^n
  const Floats shifted = x + kRound;
  const Floats f = x - (shifted - kRound);
  Floats tail = splat(0.00958285f);
  tail = tail * f + 0.05590643f;
  tail = tail * f + 0.24024099f;
  tail = tail * f + 0.69312419f;
  const Floats power = tail * f + 1.0f;
  const Floats scale = reinterpret_cast<Floats>(reinterpret_cast<Words>(shifted) << 23);
  return select(x < -126.0f, Floats{}, power * scale);
}

// tanh within 2 ulp: an odd polynomial near 0, (1 - e) / (1 + e) with e = exp(-2|x|) elsewhere.
KVPLAN_INLINE Floats tanh(Floats x) {
  const Floats size = x < 0.0f ? -x : x;
  const Floats e = exp(size * -2.0f);
  const Floats far = (1.0f - e) / (1.0f + e);
  const Floats square = x * x;
  Floats tail = splat(-0.0060967142f);
  tail = tail * square + 0.0209971797f;
  tail = tail * square - 0.0538509078f;
  tail = tail * square + 0.1333276927f;
  tail = tail * square - 0.3333332837f;
  const Floats near = x + x * (square * tail);
  return select(size < 0.625f, near, x < 0.0f ? -far : far);
}

KVPLAN_INLINE Floats sigmoid(Floats x) {
  return 1.0f / (1.0f + exp(-x));
}

// log(1 + e^x) = max(x, 0) + log(1 + u) with u = exp(-|x|), and log(1 + u) = 2 atanh(z) with z = u / (2 + u) <= 1/3,
// whose series ends where its next term is less than 2^-26 of the sum.
KVPLAN_INLINE Floats softplus(Floats x) {
  const Floats u = exp(x < 0.0f ? x : -x);
  const Floats z = u / (2.0f + u);
  const Floats square = z * z;
  Floats tail = splat(1.0f / 15.0f);
  for (int odd = 13; odd > 0; odd -= 2) tail = tail * square + 1.0f / static_cast<float>(odd);
  return maximum(x, Floats{}) + 2.0f * z * tail;
}

KVPLAN_INLINE Floats silu(Floats x) {
  return x / (1.0f + exp(-x));
}

// x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3) is x sigmoid(2u) (Hendrycks & Gimpel 2016, GPT-2's form).
KVPLAN_INLINE Floats gelu_tanh(Floats x) {
  return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
}

// x Phi(x), through Phi(-z sqrt 2) = erfc(z) / 2 and erfc(z) = exp(-z^2) Q(1 / (1 + z / 3)) for z in [0, 9.5].
KVPLAN_INLINE Floats gelu_erf(Floats x) {
  constexpr float kQ[] = {-4.711004749e-06f, 1.881310642e-01f, 1.878441721e-01f, 1.757013202e-01f,
                         1.783174425e-01f, 2.782681957e-02f, 3.603450954e-01f, -3.994230032e-01f,
                         5.099321604e-01f, -2.829471529e-01f, 5.427681655e-02f};
  const Floats z = (x < 0.0f ? -x : x) * 0.70710678f;
  const Floats t = 1.0f / (1.0f + z * 0.333333333f);
  Floats q = splat(kQ[10]);
  for (int i = 9; i >= 0; --i) q = q * t + kQ[i];
  const Floats tail = 0.5f * q * exp(-z * z);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

}  // namespace kvplan
