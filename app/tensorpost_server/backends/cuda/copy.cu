// Copies as nests of loops: target[sum of i * axis.target] = source[sum of i * axis.source]; a source stride of 0 repeats
// an element. copy_kernels.py makes the nests and chooses among the four kernels.
#include "common.cuh"

#define MOST_AXES 20

// 16 bytes that begin `at & 15` bytes behind the first of two vectors.
__device__ __forceinline__ uint4 shifted(const uint4 low, const uint4 high, u32 at) {
  u32 w0 = low.x, w1 = low.y, w2 = low.z, w3 = low.w, w4 = high.x, w5 = high.y, w6 = high.z, w7 = high.w;
  if (at & 8) w0 = w2, w1 = w3, w2 = w4, w3 = w5, w4 = w6, w5 = w7;
  if (at & 4) w0 = w1, w1 = w2, w2 = w3, w3 = w4, w4 = w5;
#if !defined(ITEM) || ITEM < 4
  const u32 bits = (at & 3) * 8;
  w0 = __funnelshift_r(w0, w1, bits);
  w1 = __funnelshift_r(w1, w2, bits);
  w2 = __funnelshift_r(w2, w3, bits);
  w3 = __funnelshift_r(w3, w4, bits);
#endif
  return make_uint4(w0, w1, w2, w3);
}

#ifdef STORE
// Words of STORE bytes, each loaded whole, in pieces of LOAD bytes, or (SPLAT) as one element of LOAD bytes repeated; with
// LOAD 0 the fill value, which no input is read for. A thread holds FOUR words and writes each of them to `walk` places along one repeating loop.

#define THREADS 128
#define FOUR 4

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
  const u32 first = blockIdx.x * (THREADS * FOUR) + threadIdx.x;
  u32 rest[FOUR];
  offset source[FOUR], target[FOUR];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    rest[i] = first + i * THREADS;
    source[i] = target[i] = 0;
  }
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 extent = p.axis[a].extent, magic = p.axis[a].magic, shift = p.axis[a].shift;
    const offset step_source = (offset)p.axis[a].source, step_target = (offset)p.axis[a].target;
#pragma unroll
    for (int i = 0; i < FOUR; ++i) {
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
  Word word[FOUR];
  u32 copies[FOUR];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
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
    for (int i = 0; i < FOUR; ++i)
      if (copy < copies[i]) write(output + target[i] + (offset)copy * (offset)p.stride, word[i]);
  }
}
#endif

#ifdef UNITS
// Short and odd rows: a block lays a unit, some contiguous part of the output, in shared memory once, item by item,
// and writes it as aligned 16-byte vectors to every place where the output repeats it. A place is a run: the unit
// itself, or several copies of it end to end. Runs begin at any address, so vectors are shifted together out of two.

#define THREADS 256

struct Unit {
  u32 last_items;   // of the last unit along moving axis 0, where that one is shorter
  u32 filled;       // items laid for any other unit: the period, and what a vector reads beyond its end
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

#pragma unroll 4
  for (u32 i = threadIdx.x; i < filled; i += THREADS) {
    u32 rest = i;
    offset from = source;
    for (u32 a = 0; a < p.inner; ++a) {
      const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
      from += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].source;
      rest = quotient;
    }
    items[i] = read<Item>(input + from);
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
    const u32 stop = min((segment + 1) * p.segment, (skew + run + 15) / 16);
    for (u32 vector = segment * p.segment + threadIdx.x; vector < stop; vector += THREADS) {
      const int byte = (int)(vector * 16 - skew);  // of the run
      if (byte >= 0 && byte + 16 <= (int)run) {
        write(start + byte, gather(shared, modulo((u32)byte, p.period)));
      } else {
        for (int i = max(byte, 0); i < min(byte + 16, (int)run); i += ITEM)
          write(start + i, items[modulo((u32)i, p.period) / ITEM]);
      }
    }
  }
}
#endif

#ifdef ROWS
// Rows that are contiguous in the input and in the output but not aligned alike. The words are the output's, aligned; what
// goes into one is shifted together out of two aligned words of the input. A row's first and last words are copied item by
// item, so that nothing outside of a row is read or written.

#define THREADS 128
#define FOUR 4

struct Rows {
  u32 count;      // words of all rows
  Divisor words;  // of a row, those that it only begins or ends in included
  u32 row;        // bytes
  u32 axes;       // loops over rows, innermost first
  Axis axis[MOST_AXES];
};

typedef WordOf<ITEM>::type Item;

extern "C" __global__ void __launch_bounds__(THREADS)
    copy_rows(const u8 *__restrict__ input, u8 *__restrict__ output, const Rows p) {
  const u32 first = blockIdx.x * (THREADS * FOUR) + threadIdx.x;
  const u8 *source[FOUR];
  u8 *target[FOUR];
  int byte[FOUR];  // of the row, where the word begins
  uint4 low[FOUR], high[FOUR];
  bool whole[FOUR];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    const u32 index = first + i * THREADS;
    u32 row = divide(index, p.words);
    const u32 word = index - row * p.words.value;
    offset from = 0, to = 0;
    for (u32 a = 0; a < p.axes; ++a) {
      const u32 quotient = divide(row, p.axis[a].magic, p.axis[a].shift);
      const offset at = (offset)(row - quotient * p.axis[a].extent);
      from += at * (offset)p.axis[a].source;
      to += at * (offset)p.axis[a].target;
      row = quotient;
    }
    byte[i] = (int)(word * 16 - (u32)(reinterpret_cast<u64>(output + to) & 15));
    source[i] = input + from + byte[i];
    target[i] = output + to + byte[i];
    if (index >= p.count) byte[i] = (int)p.row;  // no byte of it is in the row
    const int skew = (int)(reinterpret_cast<u64>(source[i]) & 15);
    whole[i] = byte[i] >= skew && byte[i] - skew + (skew ? 32 : 16) <= (int)p.row;
    if (whole[i]) {
      low[i] = read<uint4>(source[i] - skew);
      if (skew) high[i] = read<uint4>(source[i] - skew + 16);
    }
  }
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    if (whole[i]) {
      write(target[i], shifted(low[i], high[i], (u32)(reinterpret_cast<u64>(source[i]) & 15)));
    } else {
      for (int at = max(0, -byte[i]); at < min(16, (int)p.row - byte[i]); at += ITEM)
        write(target[i] + at, read<Item>(source[i] + at));
    }
  }
}
#endif

#ifdef TRANSPOSED
// Where the axis `a` is contiguous in the output and another one, `b`, in the input. A block copies a tile: it reads lines
// along b into shared memory, and writes lines along a, both in words of WORD bytes with PER_WORD items of ITEM bytes. The
// steps in shared memory let neighbouring threads use different banks. Where a tile's lines follow each other in memory, a
// word may begin in one and end in the next; then items that are neighbours there are neighbours in shared memory too.

#define THREADS 256
#define AHEAD 4
#define PER_WORD ((u32)(WORD / ITEM))

struct Transpose {
  u32 extent_a, extent_b;
  Divisor tiles_a, tiles_b;  // blocks: along a first, then along b, then the other loops
  Divisor tile_a, tile_b;    // items
  u32 step_a, step_b;        // items of shared memory
  u32 axes;
  i64 source_a, target_b;    // bytes from line to line
  Axis axis[MOST_AXES];
};

typedef WordOf<ITEM>::type Item;
union Items {
  WordOf<WORD>::type word;
  Item item[PER_WORD];
};

extern "C" __global__ void __launch_bounds__(THREADS)
    transpose(const u8 *__restrict__ input, u8 *__restrict__ output, const Transpose p) {
  SHARED_MEMORY(uint4, shared);
  Item *const tile = reinterpret_cast<Item *>(shared);
  const u32 row = divide(blockIdx.x, p.tiles_a);
  u32 rest = divide(row, p.tiles_b);
  const u32 first_a = (blockIdx.x - row * p.tiles_a.value) * p.tile_a.value;
  const u32 first_b = (row - rest * p.tiles_b.value) * p.tile_b.value;
  const u32 height = min(p.tile_a.value, p.extent_a - first_a), width = min(p.tile_b.value, p.extent_b - first_b);
  offset source = (offset)first_a * (offset)p.source_a + (offset)first_b * ITEM;
  offset target = (offset)first_b * (offset)p.target_b + (offset)first_a * ITEM;
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
    source += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].source;
    target += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].target;
    rest = quotient;
  }

  const u32 loads = height * p.tile_b.value;
  for (u32 next = threadIdx.x * PER_WORD; next < loads; next += AHEAD * THREADS * PER_WORD) {
    Items word[AHEAD];
    u32 place[AHEAD], count[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const u32 number = next + i * THREADS * PER_WORD, line = divide(number, p.tile_b);
      const u32 at = number - line * p.tile_b.value;
      const u8 *const from = input + source + (offset)line * (offset)p.source_a + (offset)(at * ITEM);
      place[i] = line * p.step_a + at * p.step_b;
      count[i] = number < loads && at < width ? min(loads - number, PER_WORD) : 0;
      if (count[i] == PER_WORD) {
        word[i].word = read<decltype(word[i].word)>(from);
      } else {
#pragma unroll
        for (u32 k = 0; k + 1 < PER_WORD; ++k)
          if (k < count[i]) word[i].item[k] = read<Item>(from + k * ITEM);
      }
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
#pragma unroll
      for (u32 k = 0; k < PER_WORD; ++k)
        if (k < count[i]) tile[place[i] + k * p.step_b] = word[i].item[k];
  }
  __syncthreads();

  const u32 stores = width * p.tile_a.value;
#pragma unroll 2
  for (u32 number = threadIdx.x * PER_WORD; number < stores; number += THREADS * PER_WORD) {
    const u32 line = divide(number, p.tile_a), at = number - line * p.tile_a.value;
    if (at >= height) continue;
    u8 *const to = output + target + (offset)line * (offset)p.target_b + (offset)(at * ITEM);
    const Item *const place = tile + (line * p.step_b + at * p.step_a);
    if (number + PER_WORD <= stores) {
      Items word;
#pragma unroll
      for (u32 k = 0; k < PER_WORD; ++k) word.item[k] = place[k * p.step_a];
      write(to, word.word);
    } else {
      for (u32 k = 0; k < stores - number; ++k) write(to + k * ITEM, place[k * p.step_a]);
    }
  }
}
#endif
