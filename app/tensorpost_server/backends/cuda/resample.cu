// Resampling by tables of taps, which the host computes for every axis. resample_kernels.py chooses among four kernels:
// tiles that are staged in shared memory (up to 4 taps an axis), linear sums of bytes and nearest, both read straight from
// the input, and one pass along one axis (any number of taps).
#include "common.cuh"

#define MOST_OUTER 8
#define THREADS 128

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
__device__ __forceinline__ float subtract(float a, float b) {  // the compiler negates b by an instruction of its own
  float d;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
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
__device__ __forceinline__ u32 narrow_halves(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
#else
  return narrow_half(low) | (u32)narrow_half(high) << 16;
#endif
}
__device__ __forceinline__ float add_toward_zero(float a, float b) {
  float d;
  asm("add.rz.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
// Both saturate.
__device__ __forceinline__ int truncate_signed(float value) {
  int d;
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(d) : "f"(value));
  return d;
}
__device__ __forceinline__ u32 truncate_unsigned(float value) {
  u32 d;
  asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(d) : "f"(value));
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
static inline float subtract(float a, float b) { return a - b; }
static inline float multiply(float a, float b) { return a * b; }
static inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float add_toward_zero(float a, float b) {
  const float d = a + b;  // of numbers that are not negative
  return (double)d > (double)a + b ? __builtin_nextafterf(d, 0) : d;
}
static inline int truncate_signed(float value) {
  return value >= 0x1p31f ? 0x7fffffff : value <= -0x1p31f ? -0x7fffffff - 1 : (int)value;
}
static inline u32 truncate_unsigned(float value) {
  return value >= 0x1p32f ? 0xffffffffu : value <= 0 ? 0 : (u32)value;
}
static inline double to_double(float value) { return value; }
static inline float to_float(double value) { return (float)value; }
static inline u32 float_bits(float value) { u32 d; __builtin_memcpy(&d, &value, 4); return d; }
static inline float bits_float(u32 bits) { float d; __builtin_memcpy(&d, &bits, 4); return d; }
static inline float widen_half(u16 half) { _Float16 d; __builtin_memcpy(&d, &half, 2); return (float)d; }
static inline u16 narrow_half(float value) { _Float16 h = (_Float16)value; u16 d; __builtin_memcpy(&d, &h, 2); return d; }
static inline u32 narrow_halves(float low, float high) { return narrow_half(low) | (u32)narrow_half(high) << 16; }
#endif

// Elements in memory, and what they are in between: float32, or the element itself where it is only moved. Integers
// truncate toward zero and saturate; their sums are written as differences to the first tap, each operation rounded, so
// that a constant stays that constant.
template <bool first, class A, class B> struct Choice { typedef A type; };
template <class A, class B> struct Choice<false, A, B> { typedef B type; };
template <class A, class B> struct Same { static const bool value = false; };
template <class A> struct Same<A, A> { static const bool value = true; };

template <class T> struct Raw {
  typedef T stored;
  typedef T wide;
  static const bool widens_fast = true;
  static const bool anchored = false;
  static __device__ __forceinline__ T widen(T value) { return value; }
  static __device__ __forceinline__ T narrow(T value) { return value; }
};
typedef Raw<u8> Raw1;
typedef Raw<u16> Raw2;
struct Float32 {
  typedef float stored;
  typedef float wide;
  static const bool widens_fast = true;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(float value) { return value; }
  static __device__ __forceinline__ float narrow(float value) { return value; }
};
struct Float16 {
  typedef u16 stored;
  typedef float wide;
  static const bool widens_fast = true;
  static const bool anchored = false;
  static __device__ __forceinline__ float widen(u16 value) { return widen_half(value); }
  static __device__ __forceinline__ u16 narrow(float value) { return narrow_half(value); }
};
struct BFloat16 {
  typedef u16 stored;
  typedef float wide;
  static const bool widens_fast = true;
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
  typedef float wide;
  static const bool widens_fast = false;  // other conversions run at a fraction of the rate
  static const bool anchored = true;
  static const bool is_signed = (T)-1 < (T)0;
  static const int bits = 8 * sizeof(T);
  static __device__ __forceinline__ float widen(T value) { return (float)value; }
  static __device__ __forceinline__ T narrow(float value) {
    const u32 most = is_signed ? (1u << (bits - 1)) - 1 : ~0u >> (32 - bits);
    if (is_signed) return (T)min(max(truncate_signed(value), -(int)most - 1), (int)most);
    return (T)min(truncate_unsigned(value), most);
  }
};
typedef Integer<signed char> Int8;
typedef Integer<u8> UInt8;
typedef Integer<short> Int16;
typedef Integer<u16> UInt16;
typedef Integer<int> Int32;
typedef Integer<u32> UInt32;

// Neighbouring elements; two halves are one instruction.
template <class Type, int count>
__device__ __forceinline__ void narrow_all(const typename Type::wide *value, typename Type::stored *result) {
#pragma unroll
  for (int i = 0; i < count; ++i) result[i] = Type::narrow(value[i]);
}
template <> __device__ __forceinline__ void narrow_all<Float16, 4>(const float *value, u16 *result) {
  const u32 low = narrow_halves(value[0], value[1]), high = narrow_halves(value[2], value[3]);
  result[0] = (u16)low, result[1] = (u16)(low >> 16), result[2] = (u16)high, result[3] = (u16)(high >> 16);
}
template <> __device__ __forceinline__ void narrow_all<Float16, 8>(const float *value, u16 *result) {
  narrow_all<Float16, 4>(value, result);
  narrow_all<Float16, 4>(value + 4, result + 4);
}

// Start of a plane in the output, and in the input, by the loops that only copy or gather.
__device__ __forceinline__ i64 plane_target(u32 plane, u32 loops, const Axis *axis) {
  i64 target = 0;
#pragma unroll 1
  for (u32 a = 0; a < loops; ++a) {
    const u32 quotient = divide(plane, axis[a].magic, axis[a].shift);
    target += (i64)(plane - quotient * axis[a].extent) * axis[a].target;
    plane = quotient;
  }
  return target;
}
__device__ __forceinline__ i64 plane_source(u32 plane, u32 loops, const Axis *axis, const int *first, u64 lists) {
  i64 source = 0;
#pragma unroll 1
  for (u32 a = 0; a < loops; ++a) {
    const u32 quotient = divide(plane, axis[a].magic, axis[a].shift), at = plane - quotient * axis[a].extent;
    source += (i64)(first[a] < 0 ? (int)at : __ldg((const int *)lists + first[a] + at)) * axis[a].source;
    plane = quotient;
  }
  return source;
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
    for (int i = 0; i < count; ++i, at += step)
      if (i < left) write<T>(at, value[i]);
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
  int source_x, target_x;
  i64 source_y, target_y;
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
  const u32 plane = p.chunks_first ? major : minor;
  const u8 *const source = input + plane_source(plane, p.outer, p.axis, p.first, p.lists);
  u8 *row = output + plane_target(plane, p.outer, p.axis) + (i64)begin * p.target_y + (i64)column * p.target_x;
  int from[COLUMNS];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    const u32 x = min(column + i, p.width - 1);
    from[i] = (list_x ? __ldg(list_x + x) : (int)x) * p.source_x;
  }
  Element value[COLUMNS];
  int held = -1;
  for (u32 y = begin; y < end; ++y, row += p.target_y) {
    const int wanted = list_y ? __ldg(list_y + y) : (int)y;
    if (wanted != held) {
      const u8 *const at = source + (i64)wanted * p.source_y;
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) value[i] = read<Element>(at + from[i]);
      held = wanted;
    }
    write_row<COLUMNS>(row, value, p.width - column, p.target_x, p.vector);
  }
}
#endif

#ifdef BYTES
// Linear along x and y, of unsigned bytes whose weights are from 0 to 1, read straight from the input. A thread has COLUMNS
// neighbouring columns, whose taps are within 8 bytes of an input row, and walks down the rows of its chunk. Each input row
// is blended along x once, and loaded while the two before it are worked on. With WHOLE every group of columns is one
// aligned word of the output.
//
// Bytes and floats are converted by adding and subtracting 2^23, where floats are a unit apart: the conversion
// instructions run at an eighth of the rate. For that h0 + w (h1 - h0) must be from 0 to below 256. The rounded product
// is not below -h0, which is a float as the difference is, so the sum is not below 0. Nor is it above h1 by more than
// three roundings of numbers up to 255.

struct Bytes {
  u32 count;       // threads with work: slots times chunks times planes
  Divisor slots;   // groups of COLUMNS columns
  Divisor second;  // chunks if chunks_first, else planes
  u32 chunks_first;
  u32 width, height;  // of the output's rows and planes
  u32 rows;           // of a chunk
  u32 last_word;      // of an input row, in words of 4 bytes, which are aligned
  int last_row;       // of the input
  u32 outer;          // loops over planes
  u32 unit;           // bits of 2^23; as a constant it would be loaded whenever it is used
  int target_x;
  i64 source_y, target_y;
  u64 table_x, table_y;  // for each output its first tap, and the weight of the element or row behind that
  u64 lists;             // indices of the outer loops
  Axis axis[MOST_OUTER];
  int first[MOST_OUTER];  // where in `lists` the indices of a loop begin; -1 for none
};

#define WORDS 3
#define UNIT 8388608.0f  // 2^23
#define NONE 0xffffffffu

// Where a thread reads in a row, and how its columns are blended of that.
struct Columns {
  const u8 *source;
  bool present[WORDS];
  u32 shift;                // bits from the first word's start to the first byte
  u32 places[COLUMNS / 4];  // of the first taps among the 8 bytes
  float weight[COLUMNS];
};

__device__ __forceinline__ void load_words(u32 (&word)[WORDS], const Columns &of) {
#pragma unroll
  for (int k = 0; k < WORDS; ++k)
    if (of.present[k]) word[k] = read<u32>(of.source + 4 * k);
}

__device__ __forceinline__ void blend_bytes(float (&result)[COLUMNS], const u32 (&word)[WORDS], const Columns &of, u32 unit) {
  const u32 low = __funnelshift_r(word[0], word[1], of.shift), high = __funnelshift_r(word[1], word[2], of.shift);
#pragma unroll
  for (int g = 0; g < COLUMNS / 4; ++g) {
    // An eighth byte's next one is not read: its weight is 0, and any byte does.
    const u32 here = __byte_perm(low, high, of.places[g]), next = __byte_perm(low, high, of.places[g] + 0x1111);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // A byte as the last one of 2^23 and itself.
      const float a = bits_float(__byte_perm(here, unit, 0x7440 + i)), b = bits_float(__byte_perm(next, unit, 0x7440 + i));
      result[4 * g + i] = add(subtract(a, UNIT), multiply(of.weight[4 * g + i], subtract(b, a)));
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_bytes(const u8 *__restrict__ input, u8 *__restrict__ output, const Bytes p) {
  const u32 thread = blockIdx.x * THREADS + threadIdx.x;
  if (thread >= p.count) return;
  const u32 rest = divide(thread, p.slots), major = divide(rest, p.second), minor = rest - major * p.second.value;
  const u32 x = (thread - rest * p.slots.value) * COLUMNS;
  const u32 begin = (p.chunks_first ? minor : major) * p.rows, end = min(begin + p.rows, p.height);
  const u32 plane = p.chunks_first ? major : minor;
  u8 *row = output + plane_target(plane, p.outer, p.axis) + (i64)begin * p.target_y + (i64)x * p.target_x;

  Columns columns;
  u32 from[COLUMNS], lowest = NONE;
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    const int2 tap = __ldg((const int2 *)p.table_x + min(x + i, p.width - 1));
    from[i] = (u32)tap.x, columns.weight[i] = __int_as_float(tap.y);
    lowest = min(lowest, from[i]);
  }
#pragma unroll
  for (int g = 0; g < COLUMNS / 4; ++g) {
    columns.places[g] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) columns.places[g] |= (from[4 * g + i] - lowest) << 4 * i;
  }
  const u32 first_word = lowest / 4;
  columns.shift = lowest % 4 * 8;
  columns.source = input + plane_source(plane, p.outer, p.axis, p.first, p.lists) + first_word * 4;
#pragma unroll
  for (int k = 0; k < WORDS; ++k) columns.present[k] = first_word + k <= p.last_word;

  const int2 *const table_y = (const int2 *)p.table_y;
  int2 tap = __ldg(table_y + begin);
  const int last = __ldg(table_y + end - 1).x;
  u32 y = begin;

  u32 words[2][WORDS] = {};  // of the row below the next one, and of the one after that
  float above[COLUMNS], below[COLUMNS];
  // Loads a row, the next one below unless it is the input's last, which then counts as the one below itself.
  const auto load = [&](u32(&word)[WORDS], int row) {
    load_words(word, columns);
    if (row < p.last_row) columns.source += p.source_y;
  };
  columns.source += (i64)tap.x * p.source_y;
  load(words[0], tap.x);
  load(words[1], tap.x + 1);
  blend_bytes(above, words[0], columns, p.unit);
  load(words[0], tap.x + 2);

  // Writes the outputs between a row and the next one.
  const auto advance = [&](float(&upper)[COLUMNS], float(&lower)[COLUMNS], u32(&word)[WORDS], int at) {
    blend_bytes(lower, word, columns, p.unit);
    load(word, at + 3);
    if (tap.x != at) return;
    float difference[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) difference[i] = subtract(lower[i], upper[i]);
    do {
      const float weight = __int_as_float(tap.y);
      tap = __ldg(table_y + ++y);  // one entry follows the last output's
      union {
        u32 part[COLUMNS / 4];
        WordOf<COLUMNS>::type word;
      } all;
#pragma unroll
      for (int g = 0; g < COLUMNS / 4; ++g) {
        u32 sum[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int c = 4 * g + i;
          sum[i] = float_bits(add_toward_zero(add(upper[c], multiply(weight, difference[c])), UNIT));
        }
        all.part[g] = __byte_perm(__byte_perm(sum[0], sum[1], 0x40), __byte_perm(sum[2], sum[3], 0x40), 0x5410);
      }
#if WHOLE
      write(row, all.word);
#else
      u64 left = all.part[COLUMNS / 4 - 1];
      if (COLUMNS > 4) left = left << 32 | all.part[0];
#pragma unroll 1
      for (u32 i = 0; i < min((u32)COLUMNS, p.width - x); ++i, left >>= 8) write(row + (int)i * p.target_x, (u8)left);
#endif
      row += p.target_y;
    } while (tap.x == at && y < end);
  };
#pragma unroll 1
  for (int at = tap.x;; at += 2) {
    advance(above, below, words[1], at);
    if (at >= last) break;
    advance(below, above, words[0], at + 1);
    if (at + 1 >= last) break;
  }
}
#endif

#ifdef STAGED
// Gathers, or weighted sums along x (TAPS_X taps), y (TAPS_Y) and up to two more axes (z and w; PLANES input planes
// together). A tap that is not there has been given part of another's weight by the host, so none is left out here.
//
// A block makes a tile of the output: some columns by some rows of one plane, or of several small ones. It first stages
// the part of the input that they need in shared memory, read in whole words, and blended along z and w. Then every
// thread has COLUMNS neighbouring columns, keeps their taps in registers and walks down rows; a staged row that it has
// blended along x is kept while the next output rows need it again.
//
// MIN_BLOCKS share a multiprocessor, which limits the registers of a thread.
//
// Along x and y the lowest and the highest index that an output reads must not fall from one output to the next. Along
// y indices count only the rows that some output reads, so none is staged for nothing.

typedef STAGED Type;
typedef Type::stored Stored;
typedef Type::wide Wide;
// What is blended before it is staged is wide. Otherwise it is widened where that takes least time.
typedef Choice<PLANES == 1 && Type::widens_fast, Stored, Wide>::type Staged;
static const bool can_pair = TAPS_X == 2 && sizeof(Staged) == 2;

#define VECTOR (16 / (int)sizeof(Stored))   // elements of an input word
#define AHEAD (4 / PLANES)                  // staged words that a thread has under way
#define PER_BANK (4 / (int)sizeof(Staged))  // staged elements in 4 bytes
#define NOWHERE 0xffffffffu                 // in the staged rows: what is not there is not staged

struct Tiles {
  Divisor tiles_x, tiles_y;  // blocks: along x first, then along y, then planes
  Divisor slots;             // of a tile: groups of COLUMNS columns
  Divisor groups;            // of a tile: groups of rows
  u32 rows;                  // of a group
  u32 planes_of_tile, planes;
  u32 width, height;         // of the output
  u32 in_width;              // elements of an input row
  u32 vector;                // whether every group of columns is one aligned word of the output
  u32 in_vector;             // whether the input is read in words, which are aligned then
  u32 paired;                // whether the two taps along x always share 4 bytes of a staged row
  Divisor loads;             // of a staged row: words, or elements
  Divisor staged_rows;       // of a plane, the most that any tile needs
  u32 pitch;                 // bytes of a staged row
  u32 sources_at, offsets_at, taps_at;  // where in shared memory the tables are, behind the staged rows
  Divisor repeat;            // columns that move together along x
  u32 outer;                 // loops over planes, without z and w
  int source_x, target_x;
  i64 source_y, target_y;
  Divisor size_z, size_w;
  i64 source_z, source_w, target_z, target_w;
  u64 table_x, table_y, table_z, table_w;  // taps, or indices where there is one each; 0 where they are the outputs'
  u64 rows_y;                              // the rows that are read; 0 for all
  u64 lists;                               // indices of the outer loops
  Axis axis[MOST_OUTER];
  int first[MOST_OUTER];  // where in `lists` the indices of a loop begin; -1 for none
};

// Where a plane of a tile comes from.
struct Source {
  i64 start[PLANES];
  float weight_z[2], weight_w[2];
};

template <int taps> struct alignas(taps > 1 ? 16 : 8) Taps {
  Tap tap[taps];
};

template <int taps> __device__ __forceinline__ Taps<taps> taps_of(u64 table, u32 output) {
  union {
    uint4 word[taps > 1 ? taps / 2 : 1];
    Taps<taps> all;
  } read;
  if (taps > 1) {
#pragma unroll
    for (int i = 0; i < taps / 2; ++i) read.word[i] = __ldg((const uint4 *)table + output * (taps / 2) + i);
  } else {
    read.all.tap[0].index = table ? __ldg((const int *)table + output) : (int)output;
    read.all.tap[0].weight = 1;
  }
  return read.all;
}

template <int taps> __device__ __forceinline__ int lowest(const Taps<taps> &one) {
  int found = one.tap[0].index;
#pragma unroll
  for (int k = 1; k < taps; ++k) found = min(found, one.tap[k].index);
  return found;
}
template <int taps> __device__ __forceinline__ int highest(const Taps<taps> &one) {
  int found = one.tap[0].index;
#pragma unroll
  for (int k = 1; k < taps; ++k) found = max(found, one.tap[k].index);
  return found;
}

// A weighted sum of samples. What is only moved has one tap.
template <int taps> __device__ __forceinline__ float blend(const float *value, const float *weight) {
  if (taps == 1) return value[0];
  float sum = Type::anchored ? value[0] : multiply(weight[0], value[0]);
#pragma unroll
  for (int k = 1; k < taps; ++k)
    sum = Type::anchored ? add(sum, multiply(weight[k], subtract(value[k], value[0])))
                         : multiply_add(weight[k], value[k], sum);
  return sum;
}
template <int taps, class T> __device__ __forceinline__ T blend(const T *value, const float *) { return value[0]; }

#if PLANES > 1
// One sample, blended along z and w.
__device__ __forceinline__ Wide blend_planes(Wide *value, const Source &source) {
#if PLANES == 4
  value[0] = blend<2>(value, source.weight_z);
  value[1] = blend<2>(value + 2, source.weight_z);
  return blend<2>(value, source.weight_w);
#else
  return blend<2>(value, source.weight_z);
#endif
}
#endif

// From stored to staged, and from staged to wide.
template <class To, class From> __device__ __forceinline__ To convert(From value) {
  if constexpr (Same<From, To>::value) return value;
  else return Type::widen(value);
}

// Where in a staged row an element is: 4 bytes are skipped after every 128, so that threads whose columns lie a power
// of two apart use different banks.
__device__ __forceinline__ u32 staged_at(u32 element) {
  const u32 bank = element / PER_BANK;
  return (bank + bank / 32) * 4 + element % PER_BANK * (u32)sizeof(Staged);
}

// `count` neighbouring elements of the input, and what is staged of them.
template <int count> union Words {
  typename WordOf<count * sizeof(Stored)>::type word;
  Stored element[count];
};

template <int count> __device__ __forceinline__ void stage(u8 *at, const Staged *value) {
  if (count >= PER_BANK) {
    union {
      Staged element[count];
      u32 bank[(count + PER_BANK - 1) / PER_BANK];
    } all;
#pragma unroll
    for (int i = 0; i < count; ++i) all.element[i] = value[i];
    // A word's elements are within 128 bytes, where nothing is skipped.
#pragma unroll
    for (int i = 0; i < count / PER_BANK; ++i) reinterpret_cast<u32 *>(at)[i] = all.bank[i];
  } else {
    *reinterpret_cast<Staged *>(at) = value[0];
  }
}

// Stages a tile's input, `count` elements at a time.
template <int count>
__device__ __forceinline__ void stage_tile(const u8 *input, u8 *patch, const Source *sources, const i64 *offsets,
                                           const Tiles &p, u32 planes, u32 low_x, u32 rows) {
  const u32 total = ((planes - 1) * p.staged_rows.value + rows) * p.loads.value;
  for (u32 next = threadIdx.x; next < total; next += AHEAD * THREADS) {
    Words<count> words[AHEAD][PLANES];
    u32 to[AHEAD], plane[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const u32 number = next + i * THREADS, line = divide(number, p.loads);
      plane[i] = divide(line, p.staged_rows);
      const u32 column = (number - line * p.loads.value) * count, row = line - plane[i] * p.staged_rows.value;
      to[i] = NOWHERE;
      if (number < total && row < rows && low_x + column < p.in_width) {
        to[i] = line * p.pitch + staged_at(column);
        const u8 *const at = input + (offsets[row] + (i64)(low_x + column) * p.source_x);
#pragma unroll
        for (int k = 0; k < PLANES; ++k) words[i][k].word = read<decltype(words[i][k].word)>(at + sources[plane[i]].start[k]);
      }
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (to[i] == NOWHERE) continue;
      Staged value[count];
#pragma unroll
      for (int e = 0; e < count; ++e) {
#if PLANES == 1
        value[e] = convert<Staged>(words[i][0].element[e]);
#else
        Wide sample[PLANES];
#pragma unroll
        for (int k = 0; k < PLANES; ++k) sample[k] = Type::widen(words[i][k].element[e]);
        value[e] = blend_planes(sample, sources[plane[i]]);
#endif
      }
      stage<count>(patch + to[i], value);
    }
  }
}

// Blends a staged row along x.
template <bool paired>
__device__ __forceinline__ void blend_row(const u8 *row, const u32 (&from)[COLUMNS][TAPS_X],
                                          const float (&weight)[COLUMNS][TAPS_X], Wide (&kept)[COLUMNS][TAPS_Y], int k) {
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    Wide value[TAPS_X];
    if constexpr (paired) {
      const u32 both = *reinterpret_cast<const u32 *>(row + from[i][0]);
      value[0] = convert<Wide>((Staged)both), value[1] = convert<Wide>((Staged)(both >> 16));
    } else {
#pragma unroll
      for (int t = 0; t < TAPS_X; ++t) value[t] = convert<Wide>(*reinterpret_cast<const Staged *>(row + from[i][t]));
    }
    kept[i][k] = blend<TAPS_X>(value, weight[i]);
  }
}

// Takes the positions along z and w out of a plane's number.
__device__ __forceinline__ void find_zw(u32 &plane, const Tiles &p, u32 &z, u32 &w) {
  z = w = 0;
#if PLANES > 1
  const u32 rest = divide(plane, p.size_z);
  z = plane - rest * p.size_z.value;
  plane = rest;
#endif
#if PLANES > 2
  const u32 left = divide(plane, p.size_w);
  w = plane - left * p.size_w.value;
  plane = left;
#endif
}

__device__ __forceinline__ Source source_of(u32 plane, const Tiles &p) {
  Source source;
  u32 z, w;
  find_zw(plane, p, z, w);
  const i64 start = plane_source(plane, p.outer, p.axis, p.first, p.lists);
  source.start[0] = start;
#if PLANES > 1
  const Taps<2> along_z = taps_of<2>(p.table_z, z);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    source.start[k] = start + along_z.tap[k].index * p.source_z;
    source.weight_z[k] = along_z.tap[k].weight;
  }
#endif
#if PLANES > 2
  const Taps<2> along_w = taps_of<2>(p.table_w, w);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    source.start[2 + k] = source.start[k] + along_w.tap[1].index * p.source_w;
    source.start[k] += along_w.tap[0].index * p.source_w;
    source.weight_w[k] = along_w.tap[k].weight;
  }
#endif
  return source;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    resample_staged(const u8 *__restrict__ input, u8 *__restrict__ output, const Tiles p) {
  SHARED_MEMORY(uint4, shared);
  u8 *const patch = reinterpret_cast<u8 *>(shared);
  Source *const sources = reinterpret_cast<Source *>(patch + p.sources_at);
  i64 *const offsets = reinterpret_cast<i64 *>(patch + p.offsets_at);
  Taps<TAPS_Y> *const taps = reinterpret_cast<Taps<TAPS_Y> *>(patch + p.taps_at);

  const u32 tile_row = divide(blockIdx.x, p.tiles_x), tile_plane = divide(tile_row, p.tiles_y);
  const u32 first_x = (blockIdx.x - tile_row * p.tiles_x.value) * p.slots.value * COLUMNS;
  const u32 tile_rows = p.groups.value * p.rows, first_y = (tile_row - tile_plane * p.tiles_y.value) * tile_rows;
  const u32 height = min(tile_rows, p.height - first_y);
  const u32 first_plane = tile_plane * p.planes_of_tile, planes = min(p.planes_of_tile, p.planes - first_plane);
  u32 low_x = lowest(taps_of<TAPS_X>(p.table_x, divide(first_x, p.repeat) * p.repeat.value));
  if (p.in_vector) low_x -= low_x % VECTOR;
  const int low_y = lowest(taps_of<TAPS_Y>(p.table_y, first_y));
  const int staged_rows = highest(taps_of<TAPS_Y>(p.table_y, first_y + height - 1)) - low_y + 1;

#pragma unroll 1
  for (u32 i = threadIdx.x; i < planes; i += THREADS) sources[i] = source_of(first_plane + i, p);
#pragma unroll 1
  for (int i = threadIdx.x; i < staged_rows; i += THREADS)
    offsets[i] = (p.rows_y ? __ldg((const int *)p.rows_y + low_y + i) : low_y + i) * p.source_y;
#pragma unroll 1
  for (u32 i = threadIdx.x; i < height; i += THREADS) {
    Taps<TAPS_Y> one = taps_of<TAPS_Y>(p.table_y, first_y + i);
#pragma unroll
    for (int k = 0; k < TAPS_Y; ++k) one.tap[k].index = (one.tap[k].index - low_y) * (int)p.pitch;
    taps[i] = one;
  }
  __syncthreads();

  if (p.in_vector) stage_tile<VECTOR>(input, patch, sources, offsets, p, planes, low_x, staged_rows);
  else stage_tile<1>(input, patch, sources, offsets, p, planes, low_x, staged_rows);

  const u32 rest = divide(threadIdx.x, p.slots), plane_of = divide(rest, p.groups);
  const u32 x = first_x + (threadIdx.x - rest * p.slots.value) * COLUMNS;
  const u32 begin = (rest - plane_of * p.groups.value) * p.rows, end = min(begin + p.rows, height);
  u32 from[COLUMNS][TAPS_X];
  float weight_x[COLUMNS][TAPS_X];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) {
    const Taps<TAPS_X> one = taps_of<TAPS_X>(p.table_x, min(x + i, p.width - 1));
#pragma unroll
    for (int k = 0; k < TAPS_X; ++k) {
      from[i][k] = plane_of * p.staged_rows.value * p.pitch + staged_at(one.tap[k].index - low_x);
      weight_x[i][k] = one.tap[k].weight;
    }
  }
  __syncthreads();
  if (plane_of >= planes || x >= p.width) return;

  u32 plane = first_plane + plane_of, z, w;
  find_zw(plane, p, z, w);
  u8 *row = output + plane_target(plane, p.outer, p.axis) + (i64)z * p.target_z + (i64)w * p.target_w +
            (i64)(first_y + begin) * p.target_y + (i64)x * p.target_x;
  Wide kept[COLUMNS][TAPS_Y];  // staged rows, blended along x
  int held[TAPS_Y];
#pragma unroll
  for (int k = 0; k < TAPS_Y; ++k) held[k] = -1;

  for (u32 y = begin; y < end; ++y, row += p.target_y) {
    const Taps<TAPS_Y> one = taps[y];
    float weight_y[TAPS_Y];
#pragma unroll
    for (int k = 0; k < TAPS_Y; ++k) {
      const int wanted = one.tap[k].index;
      weight_y[k] = one.tap[k].weight;
      if (wanted == held[k]) continue;
      held[k] = wanted;
#if TAPS_Y > 1
      if (k + 1 < TAPS_Y && wanted == held[(k + 1) % TAPS_Y]) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) kept[i][k] = kept[i][(k + 1) % TAPS_Y];
        continue;
      }
#endif
      if (can_pair && p.paired) blend_row<can_pair>(patch + wanted, from, weight_x, kept, k);
      else blend_row<false>(patch + wanted, from, weight_x, kept, k);
    }
    Wide sum[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) sum[i] = blend<TAPS_Y>(kept[i], weight_y);
    Stored result[COLUMNS];
    narrow_all<Type, COLUMNS>(sum, result);
    write_row<COLUMNS>(row, result, p.width - x, p.target_x, p.vector);
  }
}
#endif

#ifdef SOURCE_TYPE
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
  int source_inner, target_inner;
  i64 source_axis, target_axis;
  u64 starts, taps;  // tables: where each output's taps begin in the other one
  Axis axis[MOST_OUTER];
};

extern "C" __global__ void __launch_bounds__(THREADS)
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
    i64 from = (i64)(real[g] ? i : 0) * p.source_inner;
    i64 to = (i64)i * p.target_inner + (i64)output_index * p.target_axis;
    u32 left = real[g] ? o : 0;
    for (u32 a = 0; a < p.outer; ++a) {
      const u32 quotient = divide(left, p.axis[a].magic, p.axis[a].shift), at = left - quotient * p.axis[a].extent;
      from += (i64)at * p.axis[a].source;
      to += (i64)at * p.axis[a].target;
      left = quotient;
    }
    source[g] = input + from;
    target[g] = output + to;
  }

  int tap = __ldg(starts + output_index);
  const int last = __ldg(starts + output_index + 1);
  float base[GROUPS];
  double total[GROUPS];
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) base[g] = 0, total[g] = 0;
  if (p.anchored && tap < last) {
    const i64 at = (i64)__ldg(&taps[tap].index) * p.source_axis;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) base[g] = SOURCE_TYPE::widen(read<SOURCE_TYPE::stored>(source[g] + at));
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
      const i64 at = (i64)one.x * p.source_axis;
      const float weight = __int_as_float(one.y);
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        const float value = SOURCE_TYPE::widen(read<SOURCE_TYPE::stored>(source[g] + at));
        sum[g] = p.anchored ? add(sum[g], multiply(weight, subtract(value, base[g]))) : multiply_add(weight, value, sum[g]);
      }
    }
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) total[g] += to_double(sum[g]);
  }
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    const float result = add(base[g], to_float(total[g]));
    if (real[g]) write<TARGET_TYPE::stored>(target[g], TARGET_TYPE::narrow(result));
  }
}
#endif
