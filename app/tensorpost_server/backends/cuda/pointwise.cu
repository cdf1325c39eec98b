// One expression of the elements at the same coordinate of all inputs. pointwise_kernels.py writes these macros before
// this text, for each expression, its types and the class of access of each operand:
//
//   EACH(M)     M(number, stored type, type in the expression, access) for each input
//   EXPRESSION  C++ of x0, x1 and so on, and of p.constant[i]
//   RESULT      stored type of the output; RESULT_ACCESS its access
//   OPERANDS    inputs; CONSTANTS and CONSTANT_TYPE: of the expression
//   ELEMENTS    neighbouring outputs of a word; WORDS: words of a thread
#include "common.cuh"
#include "numbers.cuh"

#define THREADS 128
#define PACKED 0  // a word of neighbouring elements, aligned
#define ONE 1     // the same element for the whole word
#define APART 2   // each element by itself

// What expressions call beside the functions of numbers.cuh.
template <class T> __device__ __forceinline__ T tp_fmod(T a, T b) {
  return b == (T)0 || ((T)-1 < (T)0 && b == (T)-1) ? (T)0 : (T)(a % b);
}
__device__ __forceinline__ float tp_fmod(float a, float b) { return fmod(a, b); }
__device__ __forceinline__ double tp_fmod(double a, double b) { return fmod(a, b); }
template <class T> __device__ __forceinline__ T tp_power(T base, T exponent) {  // modulo 2^64; 1 / base toward zero
  if (exponent < (T)0) return base == (T)1 ? (T)1 : base == (T)-1 ? (exponent & 1 ? (T)-1 : (T)1) : (T)0;
  u64 result = 1, factor = (u64)base;
  for (u64 rest = (u64)exponent; rest; rest >>= 1, factor *= factor)
    if (rest & 1) result *= factor;
  return (T)result;
}
template <class T, class From> __device__ __forceinline__ T tp_saturate(From value) {
  const T low = (T)-1 < (T)0 ? (T)(1u << 31) : (T)0, high = (T)~low;
  return value != value ? (T)0 : value <= (From)low ? low : value >= (From)high ? high : (T)(i64)value;
}
template <class T> __device__ __forceinline__ T tp_shift_left(T value, T count) {
  return (u64)count < 8 * sizeof(T) ? (T)((u64)value << count) : (T)0;
}
template <class T> __device__ __forceinline__ T tp_shift_right(T value, T count) {
  return (u64)count < 8 * sizeof(T) ? (T)(value >> count) : value < (T)0 ? (T)-1 : (T)0;
}
// erf(x) = 1 - 2^(x P(x)) without a branch, for results of 16 bits: off by at most 1.0e-7, and by 8.2e-5 of the value, a
// sixth of what rounding to float16 may add. P is the minimax polynomial of log2(erfc(x)) / x on 0 to 4.2, weighted with
// erfc; beyond, 2^(x P(x)) is too small to matter. Near 0, where the difference would lose digits, erf is nearly linear.
template <class T> struct In16Bits { static const bool value = false; };
template <> struct In16Bits<Half> { static const bool value = true; };
template <> struct In16Bits<BFloat> { static const bool value = true; };
__device__ __forceinline__ double tp_erf(double value) { return erf(value); }
__device__ __forceinline__ float tp_erf(float value) {
  if constexpr (!In16Bits<RESULT>::value) return erf(value);
  const float x = fabsf(value);
  float p = fmaf(-4.53586051e-5f, x, 4.45507729e-4f);
  p = fmaf(p, x, -1.48944198e-3f);
  p = fmaf(p, x, -7.74628967e-4f);
  p = fmaf(p, x, 2.82536804e-2f);
  p = fmaf(p, x, -1.48481615e-1f);
  p = fmaf(p, x, -9.18416393e-1f);
  p = fmaf(p, x, -1.62790859f);
  const float far = copysignf(1.0f - power_of_two(p * x), value);
  return x < 0.0156f ? value * 1.12837917f : far;
}
__device__ __forceinline__ float tp_half(float value) { return widen(narrow_half(value)); }

struct PointAxis {
  u32 extent, magic, shift, unused;
  i64 stride[OPERANDS + 1];  // bytes; the output's last
};

struct Points {
  u32 count;  // words
  u32 axes;   // loops, innermost first; along the first one words are counted
  i64 step[OPERANDS + 1];  // bytes from element to element of a word
  PointAxis axis[MOST_AXES];
#if CONSTANTS
  CONSTANT_TYPE constant[CONSTANTS];
#endif
};

template <class Stored, int access> struct Word {
  typedef typename WordOf<sizeof(Stored)>::type Item;
  static const int count = access == ONE ? 1 : ELEMENTS;
  union {
    typename WordOf<sizeof(Stored) * count>::type word;
    Item item[count];
    Stored element[count];
  };

  __device__ __forceinline__ void load(const u8 *at, i64 step) {
    if (access == APART) {
#pragma unroll
      for (int e = 0; e < count; ++e) item[e] = read<Item>(at + (offset)e * (offset)step);
    } else {
      word = read<decltype(word)>(at);
    }
  }
  __device__ __forceinline__ void store(u8 *at, i64 step) const {
    if (access == APART) {
#pragma unroll
      for (int e = 0; e < count; ++e) write(at + (offset)e * (offset)step, item[e]);
    } else {
      write(at, word);
    }
  }
};

#define PARAMETER(n, Stored, Type, access) const u8 *__restrict__ input##n,
#define DECLARE(n, Stored, Type, access) Word<Stored, access> in##n[WORDS];
#define LOAD(n, Stored, Type, access) in##n[i].load(input##n + at[i][n], p.step[n]);
#define ELEMENT(n, Stored, Type, access) const Type x##n = Converted<Type>::of(widen(in##n[i].element[access == ONE ? 0 : e]));

extern "C" __global__ void __launch_bounds__(THREADS)
    pointwise(EACH(PARAMETER) u8 *__restrict__ output, const Points p) {
  const u32 first = blockIdx.x * (THREADS * WORDS) + threadIdx.x;
  u32 rest[WORDS];
  offset at[WORDS][OPERANDS + 1];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    rest[i] = first + i * THREADS;
#pragma unroll
    for (int n = 0; n <= OPERANDS; ++n) at[i][n] = 0;
  }
  for (u32 a = 0; a + 1 < p.axes; ++a) {
    const u32 extent = p.axis[a].extent, magic = p.axis[a].magic, shift = p.axis[a].shift;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      const u32 quotient = divide(rest[i], magic, shift), along = rest[i] - quotient * extent;
#pragma unroll
      for (int n = 0; n <= OPERANDS; ++n) at[i][n] += (offset)along * (offset)p.axis[a].stride[n];
      rest[i] = quotient;
    }
  }
#pragma unroll
  for (int i = 0; i < WORDS; ++i)
#pragma unroll
    for (int n = 0; n <= OPERANDS; ++n) at[i][n] += (offset)rest[i] * (offset)p.axis[p.axes - 1].stride[n];

  EACH(DECLARE)
#pragma unroll
  for (int i = 0; i < WORDS; ++i)
    if (first + i * THREADS < p.count) {
      EACH(LOAD)
    }
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    if (first + i * THREADS >= p.count) return;
    Word<RESULT, RESULT_ACCESS> result;
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) {
      EACH(ELEMENT)
      result.element[e] = Converted<RESULT>::of(EXPRESSION);
    }
    result.store(output + at[i][OPERANDS], p.step[OPERANDS]);
  }
}
