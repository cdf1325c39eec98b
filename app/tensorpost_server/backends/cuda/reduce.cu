// A reduction of lines. reduce_kernels.py writes these macros before this text, for each function, its types and how
// the input lies:
//
//   STORED, ITEM  stored type of an element, and its bytes
//   VALUE         type that is reduced in; STATE: what is known of the elements so far, a VALUE or a Scaled
//   LIFTED        C++ of x, an element as LOADED: the state of one element
//   JOIN          Sum, Product, Largest, Smallest or LogSumExp
//   RESULT        stored type of an output; FINISHED: C++ of s, the state of a whole line
//   PARTIAL       states are read, of an earlier launch
//   ACCESS        ALIGNED, SHIFTED or APART
//   HELD          elements of a vector: 16 bytes of them, or all that are side by side if these are fewer
//   RAGGED        some vectors have fewer elements, or reach out of the array
//   NESTED        lines have several loops; AHEAD: vectors that a thread loads before it uses the first
//
// Elements that are not at multiples of 16 bytes are loaded with the vectors that they lie in. Only vectors of which a
// part is outside of the array are loaded element by element: in a branch of its own, since a register that two loads
// may write to makes the second wait for the first.
//
// The order of a line's elements in a sum depends on nothing but its length, its loops and whether its elements are
// neighbours (reduce_rows) or those of different lines are (reduce_columns): not on alignment, nor on how many lines
// there are. So a part of an output has the same bytes as in the whole.
#include "common.cuh"
#include "numbers.cuh"

#define THREADS 256
#define ALIGNED 0  // vectors at multiples of 16 bytes
#define SHIFTED 1  // made of the two vectors at multiples of 16 bytes that they lie in
#define APART 2    // element by element

#define EVERY 0xffffffffu  // lanes of a warp

template <class T> struct Scaled { T largest, sum; };  // the sum of exp(x - largest)

template <class T> __device__ __forceinline__ T lowest() {
  if constexpr (Floating<T>::value) return (T)bits_float(0xff800000u);
  else return (T)-1 < (T)0 ? (T)((T)1 << (8 * sizeof(T) - 1)) : (T)0;
}
template <class T> __device__ __forceinline__ T highest() {
  if constexpr (Floating<T>::value) return (T)bits_float(0x7f800000u);
  else return (T)~lowest<T>();
}

// `none` joined with a state is that state, to the sign of zero.
template <class T> struct Sum {
  static __device__ __forceinline__ T none() { return (T)-0.0; }
  static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};
template <class T> struct Product {
  static __device__ __forceinline__ T none() { return (T)1; }
  static __device__ __forceinline__ T join(T a, T b) { return a * b; }
};
template <class T> struct Largest {
  static __device__ __forceinline__ T none() { return lowest<T>(); }
  static __device__ __forceinline__ T join(T a, T b) { return tp_max(a, b); }
};
template <class T> struct Smallest {
  static __device__ __forceinline__ T none() { return highest<T>(); }
  static __device__ __forceinline__ T join(T a, T b) { return tp_min(a, b); }
};
template <class T> struct LogSumExp {
  static __device__ __forceinline__ Scaled<T> none() { return {lowest<T>(), (T)0}; }
  static __device__ __forceinline__ Scaled<T> join(Scaled<T> a, Scaled<T> b) {
    const T apart = a.largest == b.largest ? (T)0 : b.largest - a.largest;  // equal infinities are 0 apart
    const bool second = apart > (T)0;
    const T scale = exp(second ? -apart : apart);
    return {second ? b.largest : a.largest, (second ? a.sum : b.sum) * scale + (second ? b.sum : a.sum)};
  }
};
typedef JOIN<VALUE> Join;
typedef STATE State;

template <class T> __device__ __forceinline__ T from_lane(T state, u32 behind) {
  return __shfl_down_sync(EVERY, state, behind);
}
template <class T> __device__ __forceinline__ Scaled<T> from_lane(Scaled<T> state, u32 behind) {
  return {from_lane(state.largest, behind), from_lane(state.sum, behind)};
}

#define VECTOR (16u / ITEM)  // elements of a vector

struct Reduction {
  u32 count;         // rows: segments of all lines; columns: vectors of columns of all segments
  Divisor within;    // rows: segments of a line; columns: vectors of columns
  u32 length;        // of a line: rows: vectors; columns: elements
  u32 segment;       // as much of it that one thread, or the threads that work together, reduce
  u32 together;      // log2 of how many threads do
  u32 side;          // columns: log2 of how many neighbouring threads have neighbouring vectors
  u32 extent;        // elements side by side: rows: of the innermost loop of a line; columns: of different lines
  Divisor vectors;   // of those
  u32 kept, reduced; // loops over lines, and over a line; without the one over elements side by side
  u32 spread;        // columns: log2 of the columns from one element of a vector to the next
  i64 unit;          // bytes between elements side by side
  i64 target_unit;   // columns: bytes between their outputs
  i64 segment_step;  // bytes between states of a line's segments
  i64 begin, end;    // bytes of the array that the launch reads, from its first element
  double divisor;    // elements of a line
  Axis kept_axis[MOST_AXES];
  Axis reduced_axis[MOST_AXES];
};

struct Place {
  offset source, target;
};

__device__ __forceinline__ Place line_place(u32 rest, const Reduction &p) {
  Place found = {0, 0};
  for (u32 a = 0; a < p.kept; ++a) {
    const u32 quotient = divide(rest, p.kept_axis[a].magic, p.kept_axis[a].shift);
    const offset along = (offset)(rest - quotient * p.kept_axis[a].extent);
    found.source += along * (offset)p.kept_axis[a].source;
    found.target += along * (offset)p.kept_axis[a].target;
    rest = quotient;
  }
  return found;
}

__device__ __forceinline__ offset nested(u32 rest, const Reduction &p) {
  offset found = 0;
  for (u32 a = 0; a + 1 < p.reduced; ++a) {
    const u32 quotient = divide(rest, p.reduced_axis[a].magic, p.reduced_axis[a].shift);
    found += (offset)(rest - quotient * p.reduced_axis[a].extent) * (offset)p.reduced_axis[a].source;
    rest = quotient;
  }
  return found + (p.reduced ? (offset)rest * (offset)p.reduced_axis[p.reduced - 1].source : 0);
}

// Where the elements of a vector are: bytes from the array's first element, and how many there are, at least one.
struct Found {
  offset at;
  u32 present;

  // Whether all that is loaded is within the array; elements that are loaded beyond `present` are not used.
  __device__ __forceinline__ bool whole(const Reduction &p) const {
    bool found = true;
#if RAGGED
#if ACCESS == SHIFTED
    found = at >= (offset)p.begin + 15 && at + 32 <= (offset)p.end;
#elif ACCESS == ALIGNED
    found = at + 16 <= (offset)p.end;
#else
    found = present == HELD;
#endif
#endif
    return found;
  }
};

struct Elements {
  union {
    uint4 word;
    WordOf<ITEM>::type item[VECTOR];
    STORED element[VECTOR];
  };
#if ACCESS == SHIFTED
  uint4 next;  // the elements are behind the first `shift` bytes of `word`, until they are used
  u32 shift;
#endif
  __device__ __forceinline__ Elements() {}

  // `step`: bytes between elements.
  __device__ __forceinline__ void load(const u8 *at, offset step) {
#if ACCESS == APART
#pragma unroll
    for (u32 e = 0; e < HELD; ++e) item[e] = read<WordOf<ITEM>::type>(at + (offset)e * step);
#elif ACCESS == SHIFTED
    shift = (u32)(reinterpret_cast<u64>(at) & 15);
    const u8 *const low = at - shift;
    word = read<uint4>(low);
    next = read<uint4>(low + ((shift + HELD * ITEM - 1) & 16));
#else
    word = read<uint4>(at);
#endif
  }

  __device__ __forceinline__ void load_part(const u8 *at, offset step, u32 present) {
#pragma unroll
    for (u32 e = 0; e < HELD; ++e)
      if (e < present) item[e] = read<WordOf<ITEM>::type>(at + (offset)e * step);
  }

  // Of vectors that were loaded as a whole.
  __device__ __forceinline__ void arrange() {
#if ACCESS == SHIFTED
    word = shifted(word, next, shift);
#endif
  }

  __device__ __forceinline__ State state(u32 e) const {
#if PARTIAL
    return element[e];
#else
    const LOADED x = Converted<LOADED>::of(widen(element[e]));
    return LIFTED;
#endif
  }

  __device__ __forceinline__ void join_to(State *states, u32 present) const {
#pragma unroll
    for (u32 e = 0; e < HELD; ++e)
      if (e < present) states[e] = Join::join(states[e], state(e));
  }
};

// Joins the vectors next, next + apart, ... before `end` to the states, in this order.
template <class Find>
__device__ __forceinline__ void join_vectors(State *states, u32 next, u32 end, u32 apart, offset step, const u8 *input,
                                             const Reduction &p, Find find) {
  for (; next < end; next += AHEAD * apart) {
    offset at[AHEAD];
    u32 present[AHEAD];
    bool whole = true;
#pragma unroll
    for (u32 i = 0; i < AHEAD; ++i) {
      if (next + i * apart < end) {
        const Found found = find(next + i * apart);
        at[i] = found.at;
        present[i] = found.present;
        whole = whole && found.whole(p);
      }
    }
    if (whole) {
      Elements elements[AHEAD];
#pragma unroll
      for (u32 i = 0; i < AHEAD; ++i)
        if (next + i * apart < end) elements[i].load(input + at[i], step);
#pragma unroll
      for (u32 i = 0; i < AHEAD; ++i) {
        if (next + i * apart < end) {
          elements[i].arrange();
#if RAGGED
          elements[i].join_to(states, present[i]);
#else
          elements[i].join_to(states, HELD);
#endif
        }
      }
    } else {
#pragma unroll 1
      for (u32 i = 0; i < AHEAD; ++i) {
        if (next + i * apart < end) {
          const Found found = find(next + i * apart);
          Elements elements;
          elements.load_part(input + found.at, step, found.present);
          elements.join_to(states, found.present);
        }
      }
    }
  }
}

__device__ __forceinline__ RESULT finished(State s, const Reduction &p) {
#if LAST
  return Converted<RESULT>::of(FINISHED);
#else
  return s;
#endif
}

#if COLUMNS

#define RESULT_BYTES (VECTOR * sizeof(RESULT))
#define RESULT_WORD (RESULT_BYTES < 16 ? RESULT_BYTES : 16)
union Results {
  WordOf<RESULT_WORD>::type word[RESULT_BYTES / RESULT_WORD];
  WordOf<sizeof(RESULT)>::type item[VECTOR];
  RESULT element[VECTOR];
  __device__ __forceinline__ Results() {}
};

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_columns(const u8 *__restrict__ input, u8 *__restrict__ output, const Reduction p) {
  SHARED_MEMORY(State, shared);
  const u32 group = (threadIdx.x >> p.side) & ((1u << p.together) - 1);
  const u32 beside = (threadIdx.x & ((1u << p.side) - 1)) + (threadIdx.x >> (p.side + p.together) << p.side);
  const u32 number = blockIdx.x * (THREADS >> p.together) + beside;
  const u32 segment = divide(number, p.within), vector = number - segment * p.within.value;
  const u32 line = divide(vector, p.vectors), inside = vector - line * p.vectors.value;
  const u32 lanes = (1u << p.spread) - 1, first = (inside & ~lanes) * VECTOR + (inside & lanes);
  const bool valid = number < p.count && first < p.extent;
  const u32 present = min((u32)HELD, (p.extent - first + lanes) >> p.spread);
  const Place place = line_place(line, p);
  const offset source = place.source + (offset)first * (offset)p.unit;

  State states[VECTOR];
#pragma unroll
  for (u32 e = 0; e < HELD; ++e) states[e] = Join::none();
  const u32 end = valid ? min(p.length, (segment + 1) * p.segment) : 0;
  const u32 apart = 1u << p.together;
  join_vectors(states, segment * p.segment + group, end, apart, (offset)p.unit << p.spread, input, p, [&](u32 row) {
#if NESTED
    return Found{source + nested(row, p), present};
#else
    return Found{source + (offset)row * (offset)p.reduced_axis[0].source, present};
#endif
  });

  for (u32 half = apart >> 1; half; half >>= 1) {
    if (group >= half && group < 2 * half) {
#pragma unroll
      for (u32 e = 0; e < HELD; ++e) shared[e * THREADS + threadIdx.x] = states[e];
    }
    __syncthreads();
    if (group < half) {
#pragma unroll
      for (u32 e = 0; e < HELD; ++e)
        states[e] = Join::join(states[e], shared[e * THREADS + threadIdx.x + (half << p.side)]);
    }
    __syncthreads();
  }

  if (!valid || group) return;
  u8 *const target = output + (place.target + (offset)first * (offset)p.target_unit +
                               (offset)segment * (offset)p.segment_step);
  const offset step = (offset)p.target_unit << p.spread;
  Results results;
#pragma unroll
  for (u32 e = 0; e < HELD; ++e) results.element[e] = finished(states[e], p);
  if (present == VECTOR && step == sizeof(RESULT) && !(reinterpret_cast<u64>(target) & (RESULT_WORD - 1))) {
#pragma unroll
    for (u32 i = 0; i < RESULT_BYTES / RESULT_WORD; ++i)
      reinterpret_cast<WordOf<RESULT_WORD>::type *>(target)[i] = results.word[i];
  } else {
#pragma unroll
    for (u32 e = 0; e < HELD; ++e)
      if (e < present)
        *reinterpret_cast<WordOf<sizeof(RESULT)>::type *>(target + (offset)e * step) = results.item[e];
  }
}

#else

template <u32 half> __device__ __forceinline__ State folded(State *states) {
#pragma unroll
  for (u32 e = 0; e < half; ++e) states[e] = Join::join(states[e], states[e + half]);
  if constexpr (half > 1) return folded<half / 2>(states);
  else return states[0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_rows(const u8 *__restrict__ input, u8 *__restrict__ output, const Reduction p) {
  SHARED_MEMORY(State, shared);
  const u32 apart = 1u << p.together, lane = threadIdx.x & (apart - 1);
  const u32 number = blockIdx.x * (THREADS >> p.together) + (threadIdx.x >> p.together);
  const bool valid = number < p.count;
  const u32 line = divide(number, p.within), segment = number - line * p.within.value;
  const Place place = line_place(line, p);

  State states[VECTOR];
#pragma unroll
  for (u32 e = 0; e < VECTOR; ++e) states[e] = Join::none();
  const u32 end = valid ? min(p.length, (segment + 1) * p.segment) : 0;
  join_vectors(states, segment * p.segment + lane, end, apart, (offset)p.unit, input, p, [&](u32 vector) {
#if NESTED
    const u32 run = divide(vector, p.vectors), first = (vector - run * p.vectors.value) * VECTOR;
    const offset at = place.source + nested(run, p) + (offset)first * (offset)p.unit;
#else
    const u32 first = vector * VECTOR;
    const offset at = place.source + (offset)first * (offset)p.unit;
#endif
    return Found{at, min((u32)HELD, p.extent - first)};
  });

  State s = folded<VECTOR / 2>(states);
  for (u32 behind = min(apart, 32u) >> 1; behind; behind >>= 1) s = Join::join(s, from_lane(s, behind));
  if (apart > 32) {
    const u32 warps = apart / 32;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
    __syncthreads();
    // Of each line's warps the first lanes of its first warp.
    s = threadIdx.x % 32 < warps ? shared[(threadIdx.x / 32 & ~(warps - 1)) + threadIdx.x % 32] : Join::none();
    for (u32 behind = warps >> 1; behind; behind >>= 1) s = Join::join(s, from_lane(s, behind));
  }
  if (!valid || lane) return;
  const RESULT result = finished(s, p);
  *reinterpret_cast<RESULT *>(output + (place.target + (offset)segment * (offset)p.segment_step)) = result;
}

#endif
