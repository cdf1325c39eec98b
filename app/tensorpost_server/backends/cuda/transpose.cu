// Where the axis `a` is contiguous in the output and another one, `b`, in the input. A block copies a tile: it reads lines
// along b into shared memory and writes lines along a, both in aligned words of PER_WORD items. Where lines are not aligned,
// every line has its own skew: the tile begins and ends with whole words of each line of the output, and so reads up to
// `overlap` lines of the tile before it. Short lines that follow each other in memory are one long line (`joined`).
#include "common.cuh"

#define THREADS 128
#define AHEAD 4
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

extern "C" __global__ void __launch_bounds__(THREADS, 8)
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
