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
// LOAD 0 the fill value, which no input is read for. A thread holds WORDS words and writes each of them to `walk` places along one repeating loop.

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
// Rows of the output that are parts of PARTS inputs side by side, with the fill value wherever no part is; any alignment.
// Some lanes of a warp write a chunk of a row. The words are the output's, aligned; what goes into one is shifted together
// out of two aligned words of the input. Words that a part only begins or ends in are copied item by item, so that nothing
// outside of a row is read or written.

#define THREADS 128
#define WORDS 2
#define LINE 128  // bytes that the words of a group of lanes begin at a multiple of
#define MOST_ROW_AXES 6

struct RowAxis {
  u32 extent, magic, shift, unused;
  i64 target;
};

struct PartAxis {
  u32 low, extent;  // where the part is in the output
  i64 source;
};

struct Part {
  u32 begin, end;  // bytes of the row
  i64 source;      // from the input's first element to what would be byte 0 of row 0
  PartAxis axis[MOST_ROW_AXES];
};

struct Rows {
  u32 count;       // chunks of all rows
  Divisor chunks;  // of a row
  u32 chunk;       // words
  u32 lanes;       // log2; of a chunk
  u32 row;         // bytes
  u32 axes;        // loops over rows, innermost first
  u32 parts;       // in the order of the row
  u32 filled;
  u32 fill[4];     // a word of the fill value
  RowAxis axis[MOST_ROW_AXES];
  Part part[PARTS];
};

typedef WordOf<ITEM>::type Item;

// Bytes `begin` to `end` of a row; the input has bytes `low` to `high` of it.
__device__ __forceinline__ void copy_bytes(const u8 *from, u8 *to, int begin, int end, int low, int high, u32 lanes) {
  const int skew = (int)(reinterpret_cast<u64>(to) & (LINE - 1)), lane = (int)(threadIdx.x & ((1u << lanes) - 1));
  const int first = ((begin + skew) & -LINE) - skew + lane * 16, step = 16 << lanes;
  const int shift = (int)(reinterpret_cast<u64>(from + first) & 15);
  const int least = max(begin, low + shift), most = min(end - 16, high + shift - (shift ? 32 : 16));
  uint4 left[WORDS], right[WORDS];
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const int at = first + i * step;
    if (at >= least && at <= most) {
      left[i] = read<uint4>(from + at - shift);
      if (shift) right[i] = read<uint4>(from + at - shift + 16);
    }
  }
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const int at = first + i * step;
    if (at >= least && at <= most) {
      write(to + at, shift ? shifted(left[i], right[i], (u32)shift) : left[i]);
    } else {
#pragma unroll 1
      for (int byte = max(begin, at); byte < min(end, at + 16); byte += ITEM) write(to + byte, read<Item>(from + byte));
    }
  }
}

__device__ __forceinline__ void fill_bytes(const u32 *fill, u8 *to, int begin, int end, u32 lanes) {
  const int skew = (int)(reinterpret_cast<u64>(to) & 15), lane = (int)(threadIdx.x & ((1u << lanes) - 1));
  for (int at = ((begin + skew) & ~15) - skew + lane * 16; at < end; at += 16 << lanes) {
    if (at >= begin && at + 16 <= end) {
      write(to + at, make_uint4(fill[0], fill[1], fill[2], fill[3]));
    } else {
#pragma unroll 1
      for (int byte = max(begin, at); byte < min(end, at + 16); byte += ITEM)
        write(to + byte, reinterpret_cast<const Item *>(fill)[((byte + skew) & 15) / ITEM]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if PARTS == 1
    copy_rows(const u8 *__restrict__ input0, u8 *__restrict__ output, const Rows p) {
#else
    copy_rows(const u8 *__restrict__ input0, const u8 *__restrict__ input1, const u8 *__restrict__ input2,
              const u8 *__restrict__ input3, u8 *__restrict__ output, const Rows p) {
#endif
  const u32 number = (blockIdx.x * THREADS + threadIdx.x) >> p.lanes;
  if (number >= p.count) return;
  const u32 row = divide(number, p.chunks), chunk = number - row * p.chunks.value;
  u8 *to = output;
  u32 rest = row;
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
    to += (i64)(rest - quotient * p.axis[a].extent) * p.axis[a].target;
    rest = quotient;
  }
  const int skew = (int)(reinterpret_cast<u64>(to) & (LINE - 1));
  int begin = max(0, (int)(chunk * p.chunk * 16) - skew);
  const int end = min((int)p.row, (int)((chunk + 1) * p.chunk * 16) - skew);
  for (u32 n = 0; n < p.parts; ++n) {
    const int low = (int)p.part[n].begin, high = (int)p.part[n].end, stop = min(end, high);
    if (max(begin, low) >= stop) continue;
#if PARTS == 1
    const u8 *from = input0 + p.part[n].source;
#else
    const u8 *from = (n == 0 ? input0 : n == 1 ? input1 : n == 2 ? input2 : input3) + p.part[n].source;
#endif
    bool inside = true;
    rest = row;
    for (u32 a = 0; a < p.axes; ++a) {
      const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
      const u32 at = rest - quotient * p.axis[a].extent;
      inside = inside && at - p.part[n].axis[a].low < p.part[n].axis[a].extent;
      from += (i64)at * p.part[n].axis[a].source;
      rest = quotient;
    }
    if (!inside) continue;
    if (p.filled && begin < low) fill_bytes(p.fill, to, begin, low, p.lanes);
    copy_bytes(from, to, max(begin, low), stop, low, high, p.lanes);
    begin = stop;
  }
  if (p.filled && begin < end) fill_bytes(p.fill, to, begin, end, p.lanes);
}
#endif

#ifdef TRANSPOSED
// Where the axis `a` is contiguous in the output and another one, `b`, in the input. A block copies a tile: it reads lines
// along b into shared memory and writes lines along a, both in aligned words of PER_WORD items. Where lines are not aligned,
// every line has its own skew: the tile begins and ends with whole words of each line of the output, and so reads up to
// `overlap` lines of the tile before it. Short lines that follow each other in memory are one long line (`joined`).

#define THREADS 256
#define AHEAD 4
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 4
#endif
#define PER_WORD (16 / ITEM)

struct Side {
  u32 words;       // of a line, at most
  Divisor groups;  // of a line
  u32 shift;       // a group is 2^shift words of as many lines as fill a warp
  u32 joined;      // all lines of the tile are one, which has the same order in shared memory
};

struct Transpose {
  u32 extent_a, extent_b;
  Divisor tiles_a, tiles_b;  // blocks: along a first, then along b, then the other loops
  u32 tile_a, tile_b;        // items
  u32 step_a, step_b;        // items of shared memory
  u32 overlap;               // lines along b
  u32 margin;                // items along b before the tile's first that a word may begin with
  Side read, written;
  u32 axes;
  i64 source_a, target_b;    // bytes from line to line
  Axis axis[MOST_AXES];
};

typedef WordOf<ITEM>::type Item;
union Items {
  uint4 word;
  Item item[PER_WORD];
};

struct Place {
  u32 line;
  u32 word;
};

// The word of a thread in the group with this number.
__device__ __forceinline__ Place place_of(u32 number, const Side &side) {
  const u32 lane = threadIdx.x & 31, band = divide(number, side.groups);
  return {(band << (5 - side.shift)) + (lane >> side.shift),
          ((number - band * side.groups.value) << side.shift) + (lane & ((1u << side.shift) - 1))};
}

__device__ __forceinline__ u32 groups_of(u32 lines, const Side &side) {
  return ((lines + (32u >> side.shift) - 1) >> (5 - side.shift)) * side.groups.value;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    transpose(const u8 *__restrict__ input, u8 *__restrict__ output, const Transpose p) {
  SHARED_MEMORY(uint4, shared);
  const u32 row = divide(blockIdx.x, p.tiles_a);
  u32 rest = divide(row, p.tiles_b);
  const u32 first_a = (blockIdx.x - row * p.tiles_a.value) * p.tile_a, low_a = first_a - min(first_a, p.overlap);
  const u32 first_b = (row - rest * p.tiles_b.value) * p.tile_b;
  const u32 height = min(first_a + p.tile_a, p.extent_a) - low_a, width = min(p.tile_b, p.extent_b - first_b);
  offset source = (offset)low_a * (offset)p.source_a + (offset)first_b * ITEM;
  offset target = (offset)first_b * (offset)p.target_b + (offset)first_a * ITEM;
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
    source += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].source;
    target += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].target;
    rest = quotient;
  }

  // Words of a joined line are words of shared memory too.
  const u32 lead = p.read.joined      ? (u32)(reinterpret_cast<u64>(input + source) & 15) / ITEM
                   : p.written.joined ? (u32)(reinterpret_cast<u64>(output + target) & 15) / ITEM
                                      : 0;
  Item *const tile = reinterpret_cast<Item *>(shared) + lead;

  // Items of a line, counted from the tile's first: where the row begins, the tile ends, the row ends.
  const u32 rows = p.read.joined ? 1 : height, reads = groups_of(rows, p.read);
  const int row_start = -(int)first_b, end = (int)(p.read.joined ? height * width : width);
  const int row_end = p.read.joined ? end : (int)(p.extent_b - first_b);
  const u8 *from;
  int at, place;
  const auto locate = [&](u32 number) {
    const Place one = place_of(number, p.read);
    from = input + source + (offset)one.line * (offset)p.source_a;
    at = (int)(one.word * PER_WORD - (u32)(reinterpret_cast<u64>(from) & 15) / ITEM);
    if (number >= reads || one.line >= rows) at = end;  // no item of the tile
    from += at * ITEM;
    place = (int)(one.line * p.step_a) + (at + (int)p.margin) * (int)p.step_b;
  };
  for (u32 next = threadIdx.x / 32; next < reads; next += AHEAD * THREADS / 32) {
    Items word[AHEAD];
    int first[AHEAD];
    bool whole[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      locate(next + i * (THREADS / 32));
      first[i] = place;
      whole[i] = at >= row_start && at < end && at + PER_WORD <= row_end;
      if (whole[i]) word[i].word = read<uint4>(from);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (whole[i] && p.read.joined) {
        *reinterpret_cast<uint4 *>(tile + first[i]) = word[i].word;
      } else if (whole[i]) {
#pragma unroll
        for (int k = 0; k < PER_WORD; ++k) tile[first[i] + k * (int)p.step_b] = word[i].item[k];
      } else {
        locate(next + i * (THREADS / 32));
        for (int k = max(0, row_start - at); k < min(PER_WORD, end - at); ++k)
          tile[place + k * (int)p.step_b] = read<Item>(from + k * ITEM);
      }
    }
  }
  __syncthreads();

  const u32 columns = p.written.joined ? 1 : width, writes = groups_of(columns, p.written);
  const int column_start = -(int)first_a;
  const int column_end = (int)(p.written.joined ? width * p.extent_a : p.extent_a - first_a);
#pragma unroll 2
  for (u32 number = threadIdx.x / 32; number < writes; number += THREADS / 32) {
    const Place one = place_of(number, p.written);
    if (one.line >= columns || one.word >= p.written.words) continue;
    u8 *to = output + target + (offset)one.line * (offset)p.target_b;
    const int at = (int)(one.word * PER_WORD - (u32)(reinterpret_cast<u64>(to) & 15) / ITEM);
    to += at * ITEM;
    const Item *const place = tile + (int)((one.line + p.margin) * p.step_b) + (at + (int)(first_a - low_a)) * (int)p.step_a;
    if (at >= column_start && at + PER_WORD <= column_end) {
      Items word;
      if (p.written.joined) {
        word.word = *reinterpret_cast<const uint4 *>(place);
      } else {
#pragma unroll
        for (int k = 0; k < PER_WORD; ++k) word.item[k] = place[k * (int)p.step_a];
      }
      write(to, word.word);
    } else {
      for (int k = max(0, column_start - at); k < min(PER_WORD, column_end - at); ++k)
        write(to + k * ITEM, place[k * (int)p.step_a]);
    }
  }
}
#endif
