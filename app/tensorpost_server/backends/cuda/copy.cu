// Copies as nests of loops: target[sum of i * axis.target] = source[sum of i * axis.source]; a source stride of 0 repeats
// an element. copy_kernels.py makes the nests.
#include "common.cuh"

#ifdef STORE
// Words of STORE bytes, each loaded whole, in pieces of LOAD bytes, or (SPLAT) as one element of LOAD bytes repeated; with
// LOAD 0 the fill value, which no input is read for. A thread holds WORDS words and writes each of them to `walk` places
// along one repeating loop.

#define THREADS 128
#define WORDS 2

struct Copy {
  u32 count;   // words times parts of the repeating loop
  u32 axes;    // loops, innermost first, without the repeating one
  u32 walk;    // places a thread writes a word to
  u32 copies;  // extent of the repeating loop
  u32 fill[4]; // a word of the fill value
  i64 stride;  // of the repeating loop in the output
  Axis axis[MOST_AXES];
};

typedef WordOf<STORE>::type Word;

#if LOAD
union Pieces {
  Word word;
  WordOf<LOAD>::type piece[STORE / LOAD];
};

__device__ __forceinline__ Word load(const u8 *at) {
  Pieces value;
#if SPLAT
  const WordOf<LOAD>::type element = read<WordOf<LOAD>::type>(at);
#pragma unroll
  for (int i = 0; i < STORE / LOAD; ++i) value.piece[i] = element;
#else
#pragma unroll
  for (int i = 0; i < STORE / LOAD; ++i) value.piece[i] = read<WordOf<LOAD>::type>(at + i * LOAD);
#endif
  return value.word;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
#if LOAD
    copy_words(const u8 *__restrict__ input, u8 *__restrict__ output, const Copy p) {
#else
    copy_words(u8 *__restrict__ output, const Copy p) {
#endif
  const u32 first = blockIdx.x * (THREADS * WORDS) + threadIdx.x;
  u32 rest[WORDS];
  offset source[WORDS], target[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    rest[i] = first + i * THREADS;
    source[i] = target[i] = 0;
  }
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 extent = p.axis[a].extent, magic = p.axis[a].magic, shift = p.axis[a].shift;
    const offset step_source = (offset)p.axis[a].source, step_target = (offset)p.axis[a].target;
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      const u32 quotient = divide(rest[i], magic, shift);
      const offset at = (offset)(rest[i] - quotient * extent);
      source[i] += at * step_source;
      target[i] += at * step_target;
      rest[i] = quotient;
    }
  }
#if !LOAD
  union {
    u32 part[4];
    Word word;
  } fill;
#pragma unroll
  for (int i = 0; i < 4; ++i) fill.part[i] = p.fill[i];
#endif
  // What is left of the index is the part of the repeating loop.
  Word word[WORDS];
  u32 copies[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    copies[i] = 0;
    if (first + i * THREADS < p.count) {
#if LOAD
      word[i] = load(input + source[i]);
#else
      word[i] = fill.word;
#endif
      copies[i] = min(p.walk, p.copies - rest[i] * p.walk);
      target[i] += (offset)(rest[i] * p.walk) * (offset)p.stride;
    }
  }
  for (u32 copy = 0; copy < p.walk; ++copy) {
#pragma unroll
    for (int i = 0; i < WORDS; ++i)
      if (copy < copies[i]) write(output + target[i] + (offset)copy * (offset)p.stride, word[i]);
  }
}
#endif

#ifdef UNITS
// Short and odd rows: a block lays a unit, some contiguous part of the output, in shared memory once, item by item,
// and writes it as aligned 16-byte vectors to every place where the output repeats it. A place is a run: the unit
// itself, or several copies of it end to end. Runs begin at any address, so vectors are shifted together out of two.

#define THREADS 256
#define MOST_TOGETHER 8

struct Unit {
  u32 last_items;   // of the last unit along moving axis 0, where that one is shorter
  u32 filled;       // items laid for any other unit: the period, and what a vector reads beyond its end
  int together;     // items that a thread lays next to each other: a short innermost loop, which is not in `axis`
  int step;         // bytes between these in the input
  u32 run;          // bytes
  u32 last_run;     // bytes of that last unit's run
  u32 last;         // its index along moving axis 0; 0xffffffff where all units are alike
  Divisor period;   // bytes after which a run repeats itself
  Divisor segments; // parts of a run
  u32 segment;      // vectors of a part
  u32 jobs;         // parts of all runs of one unit
  u32 share;        // jobs of one block
  Divisor blocks;   // per unit
  u32 inner, moving, repeating;  // loops of each kind, in this order in `axis`, each innermost first
  Axis axis[MOST_AXES + 2];
};

typedef WordOf<ITEM>::type Item;

__device__ __forceinline__ u32 modulo(u32 n, Divisor by) { return n - divide(n, by) * by.value; }

// 16 bytes from any item of shared memory.
__device__ __forceinline__ uint4 gather(const uint4 *shared, u32 at) {
  return shifted(shared[at / 16], shared[at / 16 + 1], at);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    copy_units(const u8 *__restrict__ input, u8 *__restrict__ output, const Unit p) {
  SHARED_MEMORY(uint4, shared);
  Item *const items = reinterpret_cast<Item *>(shared);

  u32 unit = divide(blockIdx.x, p.blocks);
  const u32 begin = (blockIdx.x - unit * p.blocks.value) * p.share, end = min(begin + p.share, p.jobs);
  u32 filled = p.filled, run = p.run;
  offset source = 0, target = 0;
  for (u32 a = 0; a < p.moving; ++a) {
    const Axis axis = p.axis[p.inner + a];
    const u32 quotient = divide(unit, axis.magic, axis.shift), at = unit - quotient * axis.extent;
    source += (offset)at * (offset)axis.source;
    target += (offset)at * (offset)axis.target;
    if (a == 0 && at == p.last) filled = p.last_items, run = p.last_run;
    unit = quotient;
  }

  const auto source_of = [&](u32 number) {
    offset from = source;
    for (u32 a = 0; a < p.inner; ++a) {
      const u32 quotient = divide(number, p.axis[a].magic, p.axis[a].shift);
      from += (offset)(number - quotient * p.axis[a].extent) * (offset)p.axis[a].source;
      number = quotient;
    }
    return from;
  };
  if (p.together == 1) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < filled; i += THREADS) items[i] = read<Item>(input + source_of(i));
  } else {
    for (u32 i = threadIdx.x; i * p.together < filled; i += THREADS) {
      const u8 *const from = input + source_of(i);
      Item held[MOST_TOGETHER];
#pragma unroll
      for (int k = 0; k < MOST_TOGETHER; ++k)
        if (k < p.together) held[k] = read<Item>(from + k * p.step);
#pragma unroll
      for (int k = 0; k < MOST_TOGETHER; ++k)
        if (k < p.together) items[i * p.together + k] = held[k];
    }
  }
  __syncthreads();

  for (u32 job = begin; job < end; ++job) {
    u32 place = divide(job, p.segments);
    const u32 segment = job - place * p.segments.value;
    offset at = target;
    for (u32 a = 0; a < p.repeating; ++a) {
      const Axis axis = p.axis[p.inner + p.moving + a];
      const u32 quotient = divide(place, axis.magic, axis.shift);
      at += (offset)(place - quotient * axis.extent) * (offset)axis.target;
      place = quotient;
    }
    u8 *const start = output + at;
    const u32 skew = (u32)(reinterpret_cast<u64>(start) & 15);
    const u32 whole = (skew + run) / 16, stop = min((segment + 1) * p.segment, whole);
    for (u32 vector = max(segment * p.segment, (skew + 15) / 16) + threadIdx.x; vector < stop; vector += THREADS) {
      const u32 byte = vector * 16 - skew;  // of the run
      write(start + byte, gather(shared, modulo(byte, p.period)));
    }
    // The first and the last items, which are no whole vector, each by its own thread.
    const bool last = threadIdx.x & 16;
    const u32 at_end = whole * 16 - skew, i = (threadIdx.x & 15) * ITEM + (last ? at_end : 0);
    if (threadIdx.x < 32 && segment == (last ? p.segments.value - 1 : 0) && i < (last ? run : (16 - skew) % 16))
      write(start + i, items[modulo(i, p.period) / ITEM]);
  }
}
#endif

#ifdef LINES
// Interleaves the items of LINES lines into one line of words of 16 bytes, or splits such a line, as pixel shuffles do.
// Each word is a short one of every line, so a warp's accesses are contiguous on both sides. Offsets have 64 bits.

#define THREADS 128
#define WORDS 2

struct Interleave {
  u32 count;  // words
  u32 axes;   // loops, innermost first
  u32 splits;
  i64 apart;  // bytes from line to line
  Axis axis[MOST_AXES];
};

typedef WordOf<ITEM>::type Item;
typedef WordOf<16 / LINES>::type Part;
union Line {
  uint4 word;
  Part part[LINES];
  Item item[16 / ITEM];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    copy_interleaved(const u8 *__restrict__ input, u8 *__restrict__ output, const Interleave p) {
  const int each = 16 / ITEM / LINES;  // items of a short word
  const u32 first = blockIdx.x * (THREADS * WORDS) + threadIdx.x;
  i64 target[WORDS];
  Line word[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    u32 rest = first + i * THREADS;
    if (rest >= p.count) continue;
    i64 source = target[i] = 0;
    for (u32 a = 0; a < p.axes; ++a) {
      const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
      source += (i64)(rest - quotient * p.axis[a].extent) * p.axis[a].source;
      target[i] += (i64)(rest - quotient * p.axis[a].extent) * p.axis[a].target;
      rest = quotient;
    }
    if (p.splits) {
      word[i].word = read<uint4>(input + source);
    } else {
#pragma unroll
      for (int k = 0; k < LINES; ++k) word[i].part[k] = read<Part>(input + source + k * p.apart);
    }
  }
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    if (first + i * THREADS >= p.count) continue;
    Line turned;
#pragma unroll
    for (int k = 0; k < LINES; ++k) {
#pragma unroll
      for (int e = 0; e < each; ++e) {
        if (p.splits) turned.item[k * each + e] = word[i].item[e * LINES + k];
        else turned.item[e * LINES + k] = word[i].item[k * each + e];
      }
    }
    if (p.splits) {
#pragma unroll
      for (int k = 0; k < LINES; ++k) write(output + target[i] + k * p.apart, turned.part[k]);
    } else {
      write(output + target[i], turned.word);
    }
  }
}
#endif
