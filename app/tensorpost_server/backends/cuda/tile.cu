// Tile as nests of loops that copy: into[sum of c * into] = of[sum of c * of], a stride of 0 repeating the input.
// tiling.py makes the nests and chooses between the two kernels.
#include "common.cuh"

#define MOST_AXES 20

#ifdef STORE
// Words of STORE bytes, each loaded whole, in pieces of LOAD bytes, or (SPLAT) as one element of LOAD bytes repeated.
// A thread holds FOUR words and writes each of them to `walk` places along one repeating loop.

#define THREADS 128
#define FOUR 4

struct Copy {
  u32 count;   // words times parts of the repeating loop
  u32 axes;    // loops, innermost first, without the repeating one
  u32 walk;    // places a thread writes a word to
  u32 copies;  // extent of the repeating loop
  i64 stride;  // and its stride in the output
  Axis axis[MOST_AXES];
};

typedef WordOf<STORE>::type Word;

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

extern "C" __global__ void __launch_bounds__(THREADS)
    tile_copy(const u8 *__restrict__ input, u8 *__restrict__ output, const Copy p) {
  const u32 first = blockIdx.x * (THREADS * FOUR) + threadIdx.x;
  u32 rest[FOUR];
  offset of[FOUR], into[FOUR];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    rest[i] = first + i * THREADS;
    of[i] = into[i] = 0;
  }
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 extent = p.axis[a].extent, magic = p.axis[a].magic, shift = p.axis[a].shift;
    const offset step_of = (offset)p.axis[a].of, step_into = (offset)p.axis[a].into;
#pragma unroll
    for (int i = 0; i < FOUR; ++i) {
      const u32 quotient = divide(rest[i], magic, shift);
      const offset at = (offset)(rest[i] - quotient * extent);
      of[i] += at * step_of;
      into[i] += at * step_into;
      rest[i] = quotient;
    }
  }
  // What is left of the index is the part of the repeating loop.
  Word word[FOUR];
  u32 copies[FOUR];
#pragma unroll
  for (int i = 0; i < FOUR; ++i) {
    copies[i] = 0;
    if (first + i * THREADS < p.count) {
      word[i] = load(input + of[i]);
      copies[i] = min(p.walk, p.copies - rest[i] * p.walk);
      into[i] += (offset)(rest[i] * p.walk) * (offset)p.stride;
    }
  }
  for (u32 copy = 0; copy < p.walk; ++copy) {
#pragma unroll
    for (int i = 0; i < FOUR; ++i)
      if (copy < copies[i]) write(output + into[i] + (offset)copy * (offset)p.stride, word[i]);
  }
}
#endif

#ifdef ITEM
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
  const uint4 low = shared[at / 16];
  const uint4 high = shared[at / 16 + 1];
  u32 w0 = low.x, w1 = low.y, w2 = low.z, w3 = low.w, w4 = high.x, w5 = high.y, w6 = high.z, w7 = high.w;
  if (at & 8) w0 = w2, w1 = w3, w2 = w4, w3 = w5, w4 = w6, w5 = w7;
  if (at & 4) w0 = w1, w1 = w2, w2 = w3, w3 = w4, w4 = w5;
#if ITEM < 4
  const u32 bits = (at & 3) * 8;
  w0 = __funnelshift_r(w0, w1, bits);
  w1 = __funnelshift_r(w1, w2, bits);
  w2 = __funnelshift_r(w2, w3, bits);
  w3 = __funnelshift_r(w3, w4, bits);
#endif
  return make_uint4(w0, w1, w2, w3);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tile_unit(const u8 *__restrict__ input, u8 *__restrict__ output, const Unit p) {
  SHARED_MEMORY(uint4, shared);
  Item *const items = reinterpret_cast<Item *>(shared);

  u32 unit = divide(blockIdx.x, p.blocks);
  const u32 begin = (blockIdx.x - unit * p.blocks.value) * p.share, end = min(begin + p.share, p.jobs);
  u32 filled = p.filled, run = p.run;
  offset of = 0, into = 0;
  for (u32 a = 0; a < p.moving; ++a) {
    const Axis axis = p.axis[p.inner + a];
    const u32 quotient = divide(unit, axis.magic, axis.shift), at = unit - quotient * axis.extent;
    of += (offset)at * (offset)axis.of;
    into += (offset)at * (offset)axis.into;
    if (a == 0 && at == p.last) filled = p.last_items, run = p.last_run;
    unit = quotient;
  }

#pragma unroll 4
  for (u32 i = threadIdx.x; i < filled; i += THREADS) {
    u32 rest = i;
    offset from = of;
    for (u32 a = 0; a < p.inner; ++a) {
      const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
      from += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].of;
      rest = quotient;
    }
    items[i] = read<Item>(input + from);
  }
  __syncthreads();

  for (u32 job = begin; job < end; ++job) {
    u32 place = divide(job, p.segments);
    const u32 segment = job - place * p.segments.value;
    offset at = into;
    for (u32 a = 0; a < p.repeating; ++a) {
      const Axis axis = p.axis[p.inner + p.moving + a];
      const u32 quotient = divide(place, axis.magic, axis.shift);
      at += (offset)(place - quotient * axis.extent) * (offset)axis.into;
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
