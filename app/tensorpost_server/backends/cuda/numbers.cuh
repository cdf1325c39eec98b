// Numbers of the types that arrays have: what they are computed in, and how they are rounded to what is stored. For kernels
// whose element types and functions are written before the text of their file.

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

// NaN wins in maximum and minimum; the negative of the least integer is itself.
template <class T> __device__ __forceinline__ T tp_abs(T value) { return value < (T)0 ? (T)-value : value; }
__device__ __forceinline__ float tp_abs(float value) { return bits_float(float_bits(value) & 0x7fffffffu); }
__device__ __forceinline__ double tp_abs(double value) { return fabs(value); }
template <class T> __device__ __forceinline__ T tp_max(T a, T b) { return a >= b || a != a ? a : b; }
template <class T> __device__ __forceinline__ T tp_min(T a, T b) { return a <= b || a != a ? a : b; }
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
