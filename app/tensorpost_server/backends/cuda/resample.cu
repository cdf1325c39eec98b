// Resampling by tables of taps, which the host computes for every axis. resampling.py chooses among three kernels:
// tiles that are staged in shared memory (up to 4 taps an axis), nearest read straight from the input, and one pass
// along one axis (any number of taps).
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

// Elements in memory, and what they are in between: float32, or the element itself where it is only moved. Integers truncate toward zero and saturate; their sums are
// written as differences to the first tap, each operation rounded, so that a constant stays that constant.
template <class T> struct Raw {
  typedef T stored;
  typedef T staged;
  static const bool anchored = false;
  static __device__ __forceinline__ T widen(T value) { return value; }
  static __device__ __forceinline__ T narrow(T value) { return value; }
};
typedef Raw<u8> Raw1;
typedef Raw<u16> Raw2;
typedef Raw<u32> Raw4;
struct Float32 {
  typedef float stored;
  typedef float staged;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(float value) { return value; }
  static __device__ __forceinline__ float narrow(float value) { return value; }
};
struct Float16 {
  typedef u16 stored;
  typedef float staged;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(u16 value) { return widen_half(value); }
  static __device__ __forceinline__ u16 narrow(float value) { return narrow_half(value); }
};
struct BFloat16 {
  typedef u16 stored;
  typedef float staged;
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
  typedef float staged;
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

// Start of a plane in the input and in the output, by the loops that only copy or gather.
__device__ __forceinline__ void find_plane(u32 plane, u32 loops, const Axis *axis, const int *first, const int *indices,
                                           i64 &of, i64 &into) {
  for (u32 a = 0; a < loops; ++a) {
    const u32 quotient = divide(plane, axis[a].magic, axis[a].shift), at = plane - quotient * axis[a].extent;
    of += (i64)(first[a] < 0 ? (int)at : __ldg(indices + first[a] + at)) * axis[a].of;
    into += (i64)at * axis[a].into;
    plane = quotient;
  }
}

// Writes neighbouring elements of a row, `left` of which are inside of the output.
template <int count, class T>
__device__ __forceinline__ void write_row(u8 *at, const T *value, u32 left, int step, bool vector) {
  if (vector) {
    union {
      typename WordOf<count * sizeof(T)>::type word;
      T element[count];
    } all;
#pragma unroll
    for (int i = 0; i < count; ++i) all.element[i] = value[i];
    write(at, all.word);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (i < left) write<T>(at + (i64)i * step, value[i]);
  }
}

#ifdef GATHER
// Nearest, read straight from the input: for elements of 8 and 16 bytes, and where outputs are far apart in the input.
// A thread has COLUMNS neighbouring columns, keeps in registers where they read, and walks down the rows of its chunk.

struct Gather {
  u32 count;       // threads with work: slots times chunks times planes
  Divisor slots;   // groups of COLUMNS columns
  Divisor second;  // chunks if chunks_first, else planes
  u32 chunks_first;
  u32 width, height;  // of the output's rows and planes
  u32 rows;           // of a chunk
  u32 vector;         // whether every group is one aligned word of the output
  u32 outer;          // loops over planes
  int of_x, into_x;
  i64 of_y, into_y;
  u64 list_x, list_y, lists;  // indices of the columns, the rows and the outer loops; 0 where they are the outputs'
  Axis axis[MOST_OUTER];
  int first[MOST_OUTER];  // where in `lists` the indices of a loop begin; -1 for none
};

typedef WordOf<GATHER>::type Element;

extern "C" __global__ void __launch_bounds__(THREADS)
    resample_gather(const u8 *__restrict__ input, u8 *__restrict__ output, const Gather p) {
  const u32 thread = blockIdx.x * THREADS + threadIdx.x;
  if (thread >= p.count) return;
  const int *const list_x = (const int *)p.list_x, *const list_y = (const int *)p.list_y;
  const u32 rest = divide(thread, p.slots), major = divide(rest, p.second), minor = rest - major * p.second.value;
  const u32 column = (thread - rest * p.slots.value) * COLUMNS;
  const u32 begin = (p.chunks_first ? minor : major) * p.rows, end = min(begin + p.rows, p.height);
  i64 of = 0, into = (i64)begin * p.into_y + (i64)column * p.into_x;
  find_plane(p.chunks_first ? major : minor, p.outer, p.axis, p.first, (const int *)p.lists, of, into);
  int from[COLUMNS];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    const u32 x = min(column + i, p.width - 1);
    from[i] = (list_x ? __ldg(list_x + x) : (int)x) * p.of_x;
  }
  Element value[COLUMNS];
  int held = -1;
  u8 *row = output + into;
  for (u32 y = begin; y < end; ++y, row += p.into_y) {
    const int wanted = list_y ? __ldg(list_y + y) : (int)y;
    if (wanted != held) {
      const u8 *const source = input + of + (i64)wanted * p.of_y;
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) value[i] = read<Element>(source + from[i]);
      held = wanted;
    }
    write_row<COLUMNS>(row, value, p.width - column, p.into_x, p.vector);
  }
}
#endif

#ifdef BLEND
// Gathers, or weighted sums along x (TAPS_X taps), y (TAPS_Y) and up to two more axes (z and w, up to 4 taps each).
// A tap that is not there has been given part of another's weight by the host, so no tap is ever left out here.
//
// A block makes a tile of the output: some columns by some rows of one plane, or of several small ones. It first stages
// the part of the input that they need in shared memory, read as whole words, blended along z and w, and widened. Then
// every thread has COLUMNS neighbouring columns, keeps their taps in registers and walks down rows, and the input rows
// that it has blended along x are kept while the next output rows need them again.
//
// Along x and y the lowest and the highest index that an output reads must not fall from one output to the next.

typedef BLEND Type;
typedef Type::stored Stored;
typedef Type::staged Staged;

#define VECTOR (16 / (int)sizeof(Stored))      // elements of an input word
#define PER_WORD (4 / (int)sizeof(Staged))     // staged elements in 4 bytes
#define AHEAD 4                                // input words that a thread has under way
#define MOST_SOURCES 16

struct Blend {
  Divisor tiles_x, tiles_y;  // blocks: along x first, then along y, then planes
  Divisor slots;             // of a tile: groups of COLUMNS columns
  Divisor groups;            // of a tile: groups of rows
  u32 rows;                  // of a group
  u32 planes_of_tile, planes;
  u32 width, height;         // of the output
  u32 in_width, in_height;
  u32 vector;                // whether every group of columns is one aligned word of the output
  u32 in_vector;             // whether the input is read in words, which are aligned then
  Divisor loads;             // of a staged row: words, or elements
  Divisor staged_rows;       // of a plane
  u32 pitch;                 // bytes of a staged row
  u32 taps_at, sources_at;   // where in shared memory the tables are
  Divisor repeat;            // columns that move together along x
  u32 outer;                 // loops over planes, without z and w
  int of_x, into_x;
  i64 of_y, into_y;
  u32 taps_z, taps_w;        // 1 for none
  Divisor size_z, size_w;
  i64 of_z, of_w, into_z, into_w;
  u64 table_x, table_y, table_z, table_w, lists;  // 0 where an index is the output's
  Axis axis[MOST_OUTER];
  int first[MOST_OUTER];  // where in `lists` the indices of a loop begin; -1 for none
};

struct Source {
  i64 of;
  float weight_z, weight_w;
};

// Where in a staged row an element is: 4 bytes are skipped after every 128, so that threads whose columns lie a power
// of two apart use different banks.
__device__ __forceinline__ u32 staged_at(u32 element) {
  const u32 word = element / PER_WORD;
  return (word + word / 32) * 4 + element % PER_WORD * (u32)sizeof(Staged);
}

// A sum of weighted samples: its first term, and one more.
__device__ __forceinline__ float begin_sum(float value, float weight) {
  return Type::anchored ? value : multiply(weight, value);
}
__device__ __forceinline__ float add_term(float sum, float first, float value, float weight) {
  return Type::anchored ? add(sum, multiply(weight, add(value, -first))) : multiply_add(weight, value, sum);
}
// What is only moved has one tap.
template <class T> __device__ __forceinline__ T begin_sum(T value, float) { return value; }
template <class T> __device__ __forceinline__ T add_term(T sum, T, T, float) { return sum; }

template <int taps, class T> __device__ __forceinline__ T blend(const T *value, const float *weight) {
  if (taps == 1) return value[0];
  T sum = begin_sum(value[0], weight[0]);
#pragma unroll
  for (int k = 1; k < taps; ++k) sum = add_term(sum, value[0], value[k], weight[k]);
  return sum;
}

// The lowest index that an output reads.
template <int taps> __device__ __forceinline__ int lowest(u64 table, u32 output) {
  if (!table) return (int)output;
  if (taps == 1) return __ldg((const int *)table + output);
  int found = __ldg((const int *)table + 2 * taps * output);
#pragma unroll
  for (int k = 1; k < taps; ++k) found = min(found, __ldg((const int *)table + 2 * (taps * output + k)));
  return found;
}

template <int taps> __device__ __forceinline__ Tap tap_of(u64 table, u32 output, int k) {
  Tap tap = {(int)output, 1};
  if (taps > 1) {
    const int2 read = __ldg((const int2 *)table + output * taps + k);
    tap.index = read.x, tap.weight = __int_as_float(read.y);
  } else if (table) {
    tap.index = __ldg((const int *)table + output);
  }
  return tap;
}

// `count` neighbouring elements of the input, and what is staged of them.
template <int count> union Words {
  typename WordOf<count * sizeof(Stored)>::type word;
  Stored element[count];
};
template <int count> union Staging {
  Staged element[count];
  u32 word[(count + PER_WORD - 1) / PER_WORD];
};

template <int count>
__device__ __forceinline__ void stage(u8 *row, u32 column, const Staging<count> &value) {
  if (count >= PER_WORD) {
#pragma unroll
    for (int i = 0; i < count; i += PER_WORD)
      *reinterpret_cast<u32 *>(row + staged_at(column + i)) = value.word[i / PER_WORD];
  } else {
    *reinterpret_cast<Staged *>(row + staged_at(column)) = value.element[0];
  }
}

template <int count>
__device__ __forceinline__ Staging<count> blended(const u8 *at, const Source *source, u32 taps_z, u32 taps_w) {
  Staging<count> first_z, sum_z, first_w, sum_w;
  for (u32 w = 0; w < taps_w; ++w) {
    const float weight_w = source[w * taps_z].weight_w;
    for (u32 z = 0; z < taps_z; ++z) {
      const Source &one = source[w * taps_z + z];
      Words<count> words;
      words.word = read<decltype(words.word)>(at + one.of);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const Staged value = Type::widen(words.element[i]);
        if (z == 0) first_z.element[i] = value;
        sum_z.element[i] = z == 0 ? begin_sum(value, one.weight_z)
                                  : add_term(sum_z.element[i], first_z.element[i], value, one.weight_z);
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (w == 0) first_w.element[i] = sum_z.element[i];
      sum_w.element[i] = w == 0 ? begin_sum(sum_z.element[i], weight_w)
                                : add_term(sum_w.element[i], first_w.element[i], sum_z.element[i], weight_w);
    }
  }
  return sum_w;
}

// Stages the tile's input, `count` elements at a time.
template <int count>
__device__ __forceinline__ void stage_tile(const u8 *input, u8 *patch, const Source *sources, const Blend &p, u32 planes,
                                           u32 low_x, u32 low_y) {
  const u32 total = planes * p.staged_rows.value * p.loads.value, taps = p.taps_z * p.taps_w;
  if (taps > 1) {
    for (u32 number = threadIdx.x; number < total; number += THREADS) {
      const u32 line = divide(number, p.loads), plane = divide(line, p.staged_rows);
      const u32 y = low_y + line - plane * p.staged_rows.value, column = (number - line * p.loads.value) * count;
      if (y >= p.in_height || low_x + column >= p.in_width) continue;
      const u8 *const at = input + (i64)y * p.of_y + (i64)(low_x + column) * p.of_x;
      stage<count>(patch + line * p.pitch, column, blended<count>(at, sources + plane * taps, p.taps_z, p.taps_w));
    }
    return;
  }
  for (u32 next = threadIdx.x; next < total; next += AHEAD * THREADS) {
    Words<count> words[AHEAD];
    u8 *row[AHEAD];
    u32 column[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const u32 number = next + i * THREADS, line = divide(number, p.loads), plane = divide(line, p.staged_rows);
      const u32 y = low_y + line - plane * p.staged_rows.value;
      column[i] = (number - line * p.loads.value) * count;
      row[i] = number < total && y < p.in_height && low_x + column[i] < p.in_width ? patch + line * p.pitch : 0;
      if (row[i])
        words[i].word = read<decltype(words[i].word)>(input + sources[plane].of + (i64)y * p.of_y +
                                                      (i64)(low_x + column[i]) * p.of_x);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (!row[i]) continue;
      Staging<count> value;
#pragma unroll
      for (int e = 0; e < count; ++e) value.element[e] = Type::widen(words[i].element[e]);
      stage<count>(row[i], column[i], value);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_blend(const u8 *__restrict__ input, u8 *__restrict__ output, const Blend p) {
  SHARED_MEMORY(uint4, shared);
  u8 *const patch = reinterpret_cast<u8 *>(shared);
  Tap *const taps = reinterpret_cast<Tap *>(patch + p.taps_at);
  Source *const sources = reinterpret_cast<Source *>(patch + p.sources_at);

  const u32 tile_row = divide(blockIdx.x, p.tiles_x), tile_plane = divide(tile_row, p.tiles_y);
  const u32 first_x = (blockIdx.x - tile_row * p.tiles_x.value) * p.slots.value * COLUMNS;
  const u32 tile_rows = p.groups.value * p.rows;
  const u32 first_y = (tile_row - tile_plane * p.tiles_y.value) * tile_rows, last_y = min(first_y + tile_rows, p.height);
  const u32 first_plane = tile_plane * p.planes_of_tile, planes = min(p.planes_of_tile, p.planes - first_plane);
  u32 low_x = lowest<TAPS_X>(p.table_x, first_x - (first_x - divide(first_x, p.repeat) * p.repeat.value));
  if (p.in_vector) low_x -= low_x % VECTOR;
  const u32 low_y = lowest<TAPS_Y>(p.table_y, first_y);

  for (u32 i = threadIdx.x; i < (last_y - first_y) * TAPS_Y; i += THREADS) {
    Tap tap = tap_of<TAPS_Y>(p.table_y, first_y + i / TAPS_Y, i % TAPS_Y);
    tap.index = (tap.index - (int)low_y) * (int)p.pitch;
    taps[i] = tap;
  }
  const u32 taps_zw = p.taps_z * p.taps_w;
  for (u32 i = threadIdx.x; i < planes * taps_zw; i += THREADS) {
    u32 plane = i / taps_zw;
    const u32 w_of = (i - plane * taps_zw) / p.taps_z, z_of = i % p.taps_z;
    plane += first_plane;
    Source source = {0, 1, 1};
    i64 into = 0;
    if (p.taps_z > 1) {
      const u32 rest = divide(plane, p.size_z), at = (plane - rest * p.size_z.value) * p.taps_z + z_of;
      const int2 tap = __ldg((const int2 *)p.table_z + at);
      source.of += tap.x * p.of_z, source.weight_z = __int_as_float(tap.y);
      plane = rest;
    }
    if (p.taps_w > 1) {
      const u32 rest = divide(plane, p.size_w), at = (plane - rest * p.size_w.value) * p.taps_w + w_of;
      const int2 tap = __ldg((const int2 *)p.table_w + at);
      source.of += tap.x * p.of_w, source.weight_w = __int_as_float(tap.y);
      plane = rest;
    }
    find_plane(plane, p.outer, p.axis, p.first, (const int *)p.lists, source.of, into);
    sources[i] = source;
  }
  __syncthreads();

  if (p.in_vector) stage_tile<VECTOR>(input, patch, sources, p, planes, low_x, low_y);
  else stage_tile<1>(input, patch, sources, p, planes, low_x, low_y);
  __syncthreads();

  const u32 rest = divide(threadIdx.x, p.slots), plane_of = divide(rest, p.groups);
  const u32 column = (threadIdx.x - rest * p.slots.value) * COLUMNS, x = first_x + column;
  const u32 begin = first_y + (rest - plane_of * p.groups.value) * p.rows, end = min(begin + p.rows, last_y);
  if (plane_of >= planes || x >= p.width) return;
  i64 into = (i64)begin * p.into_y + (i64)x * p.into_x;
  {
    u32 plane = first_plane + plane_of;
    if (p.taps_z > 1) {
      const u32 left = divide(plane, p.size_z);
      into += (i64)(plane - left * p.size_z.value) * p.into_z;
      plane = left;
    }
    if (p.taps_w > 1) {
      const u32 left = divide(plane, p.size_w);
      into += (i64)(plane - left * p.size_w.value) * p.into_w;
      plane = left;
    }
    i64 of = 0;
    find_plane(plane, p.outer, p.axis, p.first, (const int *)p.lists, of, into);
  }

  u32 from[COLUMNS][TAPS_X];
  float weight_x[COLUMNS][TAPS_X];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
#pragma unroll
    for (int k = 0; k < TAPS_X; ++k) {
      const Tap tap = tap_of<TAPS_X>(p.table_x, min(x + i, p.width - 1), k);
      from[i][k] = plane_of * p.staged_rows.value * p.pitch + staged_at(tap.index - low_x);
      weight_x[i][k] = tap.weight;
    }
  }

  Staged kept[COLUMNS][TAPS_Y];  // staged rows, blended along x
  int held[TAPS_Y];
#pragma unroll
  for (int k = 0; k < TAPS_Y; ++k) held[k] = -1;

  u8 *row = output + into;
  for (u32 y = begin; y < end; ++y, row += p.into_y) {
    float weight_y[TAPS_Y];
#pragma unroll
    for (int k = 0; k < TAPS_Y; ++k) {
      const Tap tap = taps[(y - first_y) * TAPS_Y + k];
      weight_y[k] = tap.weight;
      if (tap.index == held[k]) continue;
      held[k] = tap.index;
#if TAPS_Y > 1
      if (k + 1 < TAPS_Y && tap.index == held[(k + 1) % TAPS_Y]) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) kept[i][k] = kept[i][(k + 1) % TAPS_Y];
        continue;
      }
#endif
      const u8 *const source = patch + tap.index;
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) {
        Staged value[TAPS_X];
#pragma unroll
        for (int t = 0; t < TAPS_X; ++t) value[t] = *reinterpret_cast<const Staged *>(source + from[i][t]);
        kept[i][k] = blend<TAPS_X>(value, weight_x[i]);
      }
    }
    Stored result[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) result[i] = Type::narrow(blend<TAPS_Y>(kept[i], weight_y));
    write_row<COLUMNS>(row, result, p.width - x, p.into_x, p.vector);
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
  u64 starts, taps;  // tables: where each output's taps begin in the other one
  Axis axis[MOST_OUTER];
};

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_pass(const u8 *__restrict__ input, u8 *__restrict__ output, const Pass p) {
  const int *const starts = (const int *)p.starts;
  const Tap *const taps = (const Tap *)p.taps;
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
