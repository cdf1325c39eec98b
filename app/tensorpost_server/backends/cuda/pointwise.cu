// One expression of the elements at the same coordinate of all inputs. pointwise_kernels.py writes these macros before
// this text, for each expression, its types and the class of access of each operand:
//
//   EACH(M)     M(number, stored type, type in the expression, access) for each input
//   EXPRESSION  C++ of x0, x1 and so on, and of p.constant[i]
//   RESULT      stored type of the output; RESULT_ACCESS its access
//   OPERANDS    inputs; CONSTANTS and CONSTANT_TYPE: of the expression
//   ELEMENTS    neighbouring outputs of a word; WORDS: words of a thread
#include "common.cuh"

#define THREADS 128
#define PACKED 0  // a word of neighbouring elements, aligned
#define ONE 1     // the same element for the whole word
#define APART 2   // each element by itself

typedef signed char i8;
typedef short i16;
typedef int i32;
struct Half { u16 bits; };
struct BFloat { u16 bits; };
struct Bool { u8 bits; };

#ifdef __CUDACC__
__device__ __forceinline__ float widen(Half value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ __forceinline__ Half narrow_half(float value) {
  Half half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half.bits) : "f"(value));
  return half;
}
__device__ __forceinline__ Half narrow_half(double value) {
  Half half;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(half.bits) : "d"(value));
  return half;
}
__device__ __forceinline__ float power_of_two(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
__device__ __forceinline__ u32 float_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float bits_float(u32 bits) { return __uint_as_float(bits); }
#else
static inline float widen(Half value) { _Float16 half; __builtin_memcpy(&half, &value, 2); return (float)half; }
template <class T> static inline Half narrow_half(T value) {
  _Float16 half = (_Float16)value;
  Half bits;
  __builtin_memcpy(&bits, &half, 2);
  return bits;
}
static inline float power_of_two(float value) { return exp2f(value); }
static inline u32 float_bits(float value) { u32 bits; __builtin_memcpy(&bits, &value, 4); return bits; }
static inline float bits_float(u32 bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
#endif

__device__ __forceinline__ float widen(BFloat value) { return bits_float((u32)value.bits << 16); }
__device__ __forceinline__ bool widen(Bool value) { return value.bits != 0; }
template <class T> __device__ __forceinline__ T widen(T value) { return value; }

// From a number to the type that it is computed in or stored as: rounded to nearest even to floating point, toward zero to
// integers, which wrap.
template <class T> struct Floating { static const bool value = false; };
template <> struct Floating<float> { static const bool value = true; };
template <> struct Floating<double> { static const bool value = true; };
template <class To> struct Converted {
  template <class From> static __device__ __forceinline__ To of(From value) {
    if constexpr (Floating<From>::value && !Floating<To>::value) {
      if constexpr (sizeof(To) == 8 && (To)-1 > (To)0)
        return value >= (From)9223372036854775808.0 ? (To)value : (To)(i64)value;
      else return (To)(i64)value;
    } else {
      return (To)value;
    }
  }
};
template <> struct Converted<bool> {
  template <class From> static __device__ __forceinline__ bool of(From value) { return value != (From)0; }
};
template <> struct Converted<Bool> {
  template <class From> static __device__ __forceinline__ Bool of(From value) { return Bool{(u8)(value != (From)0)}; }
};
template <> struct Converted<Half> {
  static __device__ __forceinline__ Half of(double value) { return narrow_half(value); }
  template <class From> static __device__ __forceinline__ Half of(From value) { return narrow_half((float)value); }
};
template <> struct Converted<BFloat> {
  template <class From> static __device__ __forceinline__ BFloat of(From value) {
    const u32 bits = float_bits((float)value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return BFloat{(u16)(bits >> 16 | 0x40)};  // NaN
    return BFloat{(u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16)};
  }
};

// What expressions call. NaN wins in maximum and minimum; the negative of the least integer is itself.
template <class T> __device__ __forceinline__ T tp_abs(T value) { return value < (T)0 ? (T)-value : value; }
__device__ __forceinline__ float tp_abs(float value) { return bits_float(float_bits(value) & 0x7fffffffu); }
__device__ __forceinline__ double tp_abs(double value) { return fabs(value); }
template <class T> __device__ __forceinline__ T tp_max(T a, T b) { return a >= b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T tp_min(T a, T b) { return a <= b || a != a ? a : b; }
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
#if __CUDA_ARCH__ >= 800
__device__ __forceinline__ float tp_max(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float tp_min(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#endif

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
