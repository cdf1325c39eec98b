// Resampling by tables of taps, which the host computes for every axis. resampling.py chooses among three kernels:
// gathering rows (nearest), blending rows (up to 4 taps an axis), and one pass along one axis (any number of taps).
#include "common.cuh"

#define MOST_OUTER 8
#define THREADS 128
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // on a multiprocessor at once; what it asks for limits the registers of a thread
#endif

struct Tap {
  int index;
  float weight;
};

// Plain IEEE float32 whatever the compiler's options are: CuPy compiles with -ftz=true, which would flush subnormals.
#ifdef __CUDACC__
__device__ __forceinline__ float add(float a, float b) {
  float d;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
__device__ __forceinline__ float multiply(float a, float b) {
  float d;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
__device__ __forceinline__ float multiply_add(float a, float b, float c) {
  float d;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}
__device__ __forceinline__ float widen_half(u16 half) {
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(half));
  return d;
}
__device__ __forceinline__ u16 narrow_half(float value) {
  u16 d;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(value));
  return d;
}
__device__ __forceinline__ double to_double(float value) {
  double d;
  asm("cvt.f64.f32 %0, %1;" : "=d"(d) : "f"(value));
  return d;
}
__device__ __forceinline__ float to_float(double value) {
  float d;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(d) : "d"(value));
  return d;
}
__device__ __forceinline__ u32 float_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float bits_float(u32 bits) { return __uint_as_float(bits); }
#else
static inline float add(float a, float b) { return a + b; }
static inline float multiply(float a, float b) { return a * b; }
static inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double to_double(float value) { return value; }
static inline float to_float(double value) { return (float)value; }
static inline u32 float_bits(float value) { u32 d; __builtin_memcpy(&d, &value, 4); return d; }
static inline float bits_float(u32 bits) { float d; __builtin_memcpy(&d, &bits, 4); return d; }
static inline float widen_half(u16 half) { _Float16 d; __builtin_memcpy(&d, &half, 2); return (float)d; }
static inline u16 narrow_half(float value) { _Float16 h = (_Float16)value; u16 d; __builtin_memcpy(&d, &h, 2); return d; }
#endif

// Elements in memory and the float32 they are computed in. Integers truncate toward zero and saturate; their sums are
// written as differences to the first tap, each operation rounded, so that a constant stays that constant.
struct Float32 {
  typedef float stored;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(float value) { return value; }
  static __device__ __forceinline__ float narrow(float value) { return value; }
};
struct Float16 {
  typedef u16 stored;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(u16 value) { return widen_half(value); }
  static __device__ __forceinline__ u16 narrow(float value) { return narrow_half(value); }
};
struct BFloat16 {
  typedef u16 stored;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(u16 value) { return bits_float((u32)value << 16); }
  static __device__ __forceinline__ u16 narrow(float value) {
    const u32 bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);  // NaN
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);                   // to nearest even
  }
};
template <class T> struct Integer {
  typedef T stored;
  static const bool anchored = true;
  static const bool is_signed = (T)-1 < (T)0;
  static const int bits = 8 * sizeof(T);
  static __device__ __forceinline__ float widen(T value) { return (float)value; }
  static __device__ __forceinline__ T narrow(float value) {
    const float above = is_signed ? (float)(1u << (bits - 1)) : 2.0f * (float)(1u << (bits - 1));
    if (value >= above) return is_signed ? (T)((1u << (bits - 1)) - 1) : (T)~(T)0;
    if (value <= (is_signed ? -above : 0.0f)) return is_signed ? (T)(1u << (bits - 1)) : (T)0;
    return is_signed ? (T)(int)value : (T)(u32)value;
  }
};
typedef Integer<signed char> Int8;
typedef Integer<u8> UInt8;
typedef Integer<short> Int16;
typedef Integer<u16> UInt16;
typedef Integer<int> Int32;
typedef Integer<u32> UInt32;

#if defined(GATHER) || defined(BLEND)
// A thread has GROUPS groups of PAIR neighbouring columns, `slots` groups apart, keeps what it needs to know of them in
// registers and walks down the rows of its chunk. So a warp reads and writes neighbouring addresses, small planes share
// a block, and a row of the input that several output rows need is read once.

#define COLUMNS (PAIR * GROUPS)

struct Rows {
  u32 count;       // threads with work: slots times chunks times planes
  Divisor slots;   // groups of columns, divided by GROUPS
  Divisor second;  // chunks if chunks_first, else planes
  u32 chunks_first;
  u32 width, height;  // of the output's rows and planes
  u32 rows;           // of a chunk
  u32 vector;         // whether every group is an aligned word of the output
  u32 outer;          // loops over planes
  int of_x, into_x;
  i64 of_y, into_y;
  i64 of_z, of_w;     // input strides of the axes that are blended from plane to plane
  Divisor size_z, size_w;
  i64 into_z, into_w;
  Axis axis[MOST_OUTER];
  int list[MOST_OUTER];  // where in the table of outer axes the indices of this one begin; -1 for none
};

struct Place {
  u32 slot, plane, row, last;
};

__device__ __forceinline__ Place place_of(u32 thread, const Rows &p) {
  const u32 rest = divide(thread, p.slots), major = divide(rest, p.second), minor = rest - major * p.second.value;
  Place at;
  at.slot = thread - rest * p.slots.value;
  at.plane = p.chunks_first ? major : minor;
  at.row = (p.chunks_first ? minor : major) * p.rows;
  at.last = min(at.row + p.rows, p.height);
  return at;
}

__device__ __forceinline__ u32 column(u32 slot, const Rows &p, int group) { return (slot + group * p.slots.value) * PAIR; }

// Start of the plane in the input and in the output, by the loops that only copy or gather.
__device__ __forceinline__ void find_plane(u32 plane, const Rows &p, const int *lists, i64 &of, i64 &into) {
  for (u32 a = 0; a < p.outer; ++a) {
    const u32 quotient = divide(plane, p.axis[a].magic, p.axis[a].shift), at = plane - quotient * p.axis[a].extent;
    of += (i64)(p.list[a] < 0 ? (int)at : __ldg(lists + p.list[a] + at)) * p.axis[a].of;
    into += (i64)at * p.axis[a].into;
    plane = quotient;
  }
}

// Writes one row's columns.
template <class T> __device__ __forceinline__ void write_row(u8 *row, u32 slot, const Rows &p, const T *value) {
  typedef typename WordOf<PAIR * sizeof(T)>::type Word;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    const u32 x = column(slot, p, g);
    if (p.vector) {
      union {
        Word word;
        T element[PAIR];
      } all;
#pragma unroll
      for (int i = 0; i < PAIR; ++i) all.element[i] = value[g * PAIR + i];
      if (x < p.width) write<Word>(row + (i64)x * (int)sizeof(T), all.word);
    } else {
#pragma unroll
      for (int i = 0; i < PAIR; ++i)
        if (x + i < p.width) write<T>(row + (i64)(x + i) * p.into_x, value[g * PAIR + i]);
    }
  }
}
#endif

#ifdef GATHER
// Nearest: every element is some element of the input, of GATHER bytes.

typedef WordOf<GATHER>::type Element;

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_gather(const u8 *__restrict__ input, u8 *__restrict__ output, const int *__restrict__ list_x,
                    const int *__restrict__ list_y, const int *__restrict__ lists, const Rows p) {
  const u32 thread = blockIdx.x * THREADS + threadIdx.x;
  if (thread >= p.count) return;
  const Place at = place_of(thread, p);
  i64 of = 0, into = 0;
  find_plane(at.plane, p, lists, of, into);
  int from[COLUMNS];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    const u32 x = min(column(at.slot, p, i / PAIR) + i % PAIR, p.width - 1);
    from[i] = (list_x ? __ldg(list_x + x) : (int)x) * p.of_x;
  }
  Element value[COLUMNS];
  int held = -1;
  u8 *row = output + into + (i64)at.row * p.into_y;
  for (u32 y = at.row; y < at.last; ++y, row += p.into_y) {
    const int wanted = list_y ? __ldg(list_y + y) : (int)y;
    if (wanted != held) {
      const u8 *const source = input + of + (i64)wanted * p.of_y;
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) value[i] = read<Element>(source + from[i]);
      held = wanted;
    }
    write_row<Element>(row, at.slot, p, value);
  }
}
#endif

#ifdef BLEND
// Weighted sums along x (TAPS_X taps), y (TAPS_Y) and up to two more axes (PLANES input planes together). A tap that is
// not there has been given part of another's weight by the host, so no tap is ever left out here.

typedef BLEND Type;

template <int taps> __device__ __forceinline__ float blend(const float *value, const float *weight) {
  if (taps == 1) return value[0];
  if (Type::anchored) {
    float sum = value[0];
#pragma unroll
    for (int k = 1; k < taps; ++k) sum = add(sum, multiply(weight[k], add(value[k], -value[0])));
    return sum;
  }
  float sum = multiply(weight[0], value[0]);
#pragma unroll
  for (int k = 1; k < taps; ++k) sum = multiply_add(weight[k], value[k], sum);
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_blend(const u8 *__restrict__ input, u8 *__restrict__ output, const void *__restrict__ table_x,
                   const void *__restrict__ table_y, const Tap *__restrict__ table_z, const Tap *__restrict__ table_w,
                   const int *__restrict__ lists, const Rows p) {
  typedef Type::stored T;
  const u32 thread = blockIdx.x * THREADS + threadIdx.x;
  if (thread >= p.count) return;
  Place at = place_of(thread, p);

  i64 of[PLANES];
  float weight_z[PLANES];
  i64 into = 0;
  of[0] = 0;
#if PLANES > 1
  {
    const u32 rest = divide(at.plane, p.size_z), z = at.plane - rest * p.size_z.value;
    at.plane = rest;
    into += (i64)z * p.into_z;
    const Tap first = table_z[2 * z], second = table_z[2 * z + 1];
    of[0] = first.index * p.of_z, weight_z[0] = first.weight;
    of[1] = second.index * p.of_z, weight_z[1] = second.weight;
  }
#endif
#if PLANES > 2
  float weight_w[2];
  {
    const u32 rest = divide(at.plane, p.size_w), w = at.plane - rest * p.size_w.value;
    at.plane = rest;
    into += (i64)w * p.into_w;
    const Tap first = table_w[2 * w], second = table_w[2 * w + 1];
    weight_w[0] = first.weight, weight_w[1] = second.weight;
    of[2] = of[0] + second.index * p.of_w, of[3] = of[1] + second.index * p.of_w;
    of[0] += first.index * p.of_w, of[1] += first.index * p.of_w;
  }
#endif
  {
    i64 plane = 0;
    find_plane(at.plane, p, lists, plane, into);
#pragma unroll
    for (int i = 0; i < PLANES; ++i) of[i] += plane;
  }

  int from[COLUMNS][TAPS_X];
  float weight_x[COLUMNS][TAPS_X];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    const u32 x = min(column(at.slot, p, i / PAIR) + i % PAIR, p.width - 1);
#if TAPS_X == 1
    from[i][0] = (table_x ? __ldg((const int *)table_x + x) : (int)x) * p.of_x;
#else
#pragma unroll
    for (int k = 0; k < TAPS_X; ++k) {
      const int2 tap = __ldg((const int2 *)table_x + x * TAPS_X + k);
      from[i][k] = tap.x * p.of_x;
      weight_x[i][k] = __int_as_float(tap.y);
    }
#endif
  }

  float kept[COLUMNS][TAPS_Y];  // input rows, blended along all axes but y
  int held[TAPS_Y];
#pragma unroll
  for (int k = 0; k < TAPS_Y; ++k) held[k] = -1;

  u8 *row = output + into + (i64)at.row * p.into_y;
  for (u32 y = at.row; y < at.last; ++y, row += p.into_y) {
    float weight_y[TAPS_Y];
#pragma unroll
    for (int k = 0; k < TAPS_Y; ++k) {
#if TAPS_Y == 1
      const int wanted = table_y ? __ldg((const int *)table_y + y) : (int)y;
#else
      const int2 tap = __ldg((const int2 *)table_y + y * TAPS_Y + k);
      const int wanted = tap.x;
      weight_y[k] = __int_as_float(tap.y);
#endif
      if (wanted == held[k]) continue;
      held[k] = wanted;
#if TAPS_Y > 1
      if (k + 1 < TAPS_Y && wanted == held[(k + 1) % TAPS_Y]) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) kept[i][k] = kept[i][(k + 1) % TAPS_Y];
        continue;
      }
#endif
      T value[PLANES][COLUMNS][TAPS_X];
#pragma unroll
      for (int plane = 0; plane < PLANES; ++plane) {
        const u8 *const source = input + of[plane] + (i64)wanted * p.of_y;
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
#pragma unroll
          for (int t = 0; t < TAPS_X; ++t) value[plane][i][t] = read<T>(source + from[i][t]);
      }
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) {
        float of_plane[PLANES];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
          float wide[TAPS_X];
#pragma unroll
          for (int t = 0; t < TAPS_X; ++t) wide[t] = Type::widen(value[plane][i][t]);
          of_plane[plane] = blend<TAPS_X>(wide, weight_x[i]);
        }
#if PLANES == 4
        of_plane[0] = blend<2>(of_plane, weight_z);
        of_plane[1] = blend<2>(of_plane + 2, weight_z);
        kept[i][k] = blend<2>(of_plane, weight_w);
#else
        kept[i][k] = blend<PLANES>(of_plane, weight_z);
#endif
      }
    }
    T result[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) result[i] = Type::narrow(blend<TAPS_Y>(kept[i], weight_y));
    write_row<T>(row, at.slot, p, result);
  }
}
#endif

#ifdef FROM
// One axis alone, with any number of taps per output, even none. Taps are added in their order, CHUNK at a time in
// float32, and the chunks in float64, so that a long sum loses nothing that a short one would keep.

#define CHUNK 32
#define GROUPS 4

struct Pass {
  u32 count;        // threads with work
  Divisor inner;    // positions behind the axis, divided by GROUPS where `along_inner`
  Divisor outputs;  // of the axis
  u32 along_inner;  // a thread's GROUPS results are apart in the inner position; otherwise in the outer one
  u32 inner_size, outer_size;
  u32 apart;        // by how many positions
  u32 anchored;     // sums of differences to the first tap
  u32 outer;        // loops in front of the axis and behind it but for the inner one
  int of_inner, into_inner;
  i64 of_axis, into_axis;
  Axis axis[MOST_OUTER];
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_pass(const u8 *__restrict__ input, u8 *__restrict__ output, const int *__restrict__ starts,
                  const Tap *__restrict__ taps, const Pass p) {
  const u32 thread = blockIdx.x * THREADS + threadIdx.x;
  if (thread >= p.count) return;
  const u32 rest = divide(thread, p.inner), inner = thread - rest * p.inner.value;
  const u32 outer = divide(rest, p.outputs), output_index = rest - outer * p.outputs.value;

  const u8 *source[GROUPS];
  u8 *target[GROUPS];
  bool real[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    const u32 i = p.along_inner ? inner + g * p.apart : inner, o = p.along_inner ? outer : outer + g * p.apart;
    real[g] = i < p.inner_size && o < p.outer_size;
    i64 of = (i64)(real[g] ? i : 0) * p.of_inner, into = (i64)i * p.into_inner + (i64)output_index * p.into_axis;
    u32 left = real[g] ? o : 0;
    for (u32 a = 0; a < p.outer; ++a) {
      const u32 quotient = divide(left, p.axis[a].magic, p.axis[a].shift), at = left - quotient * p.axis[a].extent;
      of += (i64)at * p.axis[a].of;
      into += (i64)at * p.axis[a].into;
      left = quotient;
    }
    source[g] = input + of;
    target[g] = output + into;
  }

  int tap = __ldg(starts + output_index);
  const int last = __ldg(starts + output_index + 1);
  float base[GROUPS];
  double total[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) base[g] = 0, total[g] = 0;
  if (p.anchored && tap < last) {
    const i64 at = (i64)__ldg(&taps[tap].index) * p.of_axis;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) base[g] = FROM::widen(read<FROM::stored>(source[g] + at));
    ++tap;
  }
  float sum[GROUPS];
  while (tap < last) {
    const int stop = min(tap + CHUNK, last);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) sum[g] = 0;
#pragma unroll 4
    for (; tap < stop; ++tap) {
      const int2 one = __ldg(reinterpret_cast<const int2 *>(taps) + tap);
      const i64 at = (i64)one.x * p.of_axis;
      const float weight = __int_as_float(one.y);
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        const float value = FROM::widen(read<FROM::stored>(source[g] + at));
        sum[g] = p.anchored ? add(sum[g], multiply(weight, add(value, -base[g]))) : multiply_add(weight, value, sum[g]);
      }
    }
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) total[g] += to_double(sum[g]);
  }
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    const float result = add(base[g], to_float(total[g]));
    if (real[g]) write<TO::stored>(target[g], TO::narrow(result));
  }
}
#endif
