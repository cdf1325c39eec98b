// Transposes single bytes, of lines of any alignment. As in transpose.cu the axis `a` is contiguous in the output and `b` in the
// input. A tile is read by vectors of lines along b into shared memory. A thread takes 16 x 4 bytes of it, of as many lines,
// transposes blocks of 4 x 4 in registers, and has 16 bytes of 4 lines of the output then. The vectors that it writes begin at
// multiples of 16 bytes, so it makes them of its own 16 bytes and of those of the next lane; tiles overlap by 16 lines.
#include "common.cuh"

#define THREADS 256
#define TILE_A 256
#define TILE_B 128
#define OVERLAP 16
#define PER_LINE (TILE_B / 16)  // vectors of a line of a tile
#define AHEAD 4

struct ByteTranspose {
  u32 extent_a, extent_b;
  Divisor tiles_a, tiles_b;  // blocks: along a first, then along b, then the other loops
  u32 axes;
  i64 source_a, target_b;    // bytes from line to line
  i64 begin, end;            // bytes of the input, from its first element
  Axis axis[MOST_AXES];
};

// Byte i of each of four words, as word i.
__device__ __forceinline__ void transpose_block(const u32 *words, u32 *a, u32 *b, u32 *c, u32 *d) {
  const u32 low = __byte_perm(words[0], words[1], 0x5140), low_next = __byte_perm(words[2], words[3], 0x5140);
  const u32 high = __byte_perm(words[0], words[1], 0x7362), high_next = __byte_perm(words[2], words[3], 0x7362);
  *a = __byte_perm(low, low_next, 0x5410);
  *b = __byte_perm(low, low_next, 0x7632);
  *c = __byte_perm(high, high_next, 0x5410);
  *d = __byte_perm(high, high_next, 0x7632);
}

__device__ __forceinline__ u32 next_lane(u32 value) { return __shfl_down_sync(0xffffffffu, value, 1); }

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    transpose_bytes(const u8 *__restrict__ input, u8 *__restrict__ output, const ByteTranspose p) {
  SHARED_MEMORY(uint4, tile);
  const u32 row = divide(blockIdx.x, p.tiles_a);
  u32 rest = divide(row, p.tiles_b);
  const int first_a = (int)((blockIdx.x - row * p.tiles_a.value) * (TILE_A - OVERLAP)) - OVERLAP;
  const u32 first_b = (row - rest * p.tiles_b.value) * TILE_B;
  offset source = (offset)first_b, target = (offset)first_b * (offset)p.target_b;
  for (u32 a = 0; a < p.axes; ++a) {
    const u32 quotient = divide(rest, p.axis[a].magic, p.axis[a].shift);
    source += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].source;
    target += (offset)(rest - quotient * p.axis[a].extent) * (offset)p.axis[a].target;
    rest = quotient;
  }

  const u32 column = threadIdx.x % PER_LINE, width = p.extent_b - first_b;
#pragma unroll 1
  for (u32 next = threadIdx.x / PER_LINE; next < TILE_A; next += AHEAD * THREADS / PER_LINE) {
    union Bytes { uint4 word; u8 byte[16]; } low[AHEAD];
    uint4 high[AHEAD];
    u32 shift[AHEAD];
    const bool inside = column * 16 < width;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int a = first_a + (int)(next + i * (THREADS / PER_LINE));
      if (!inside || a < 0 || a >= (int)p.extent_a) continue;
      const u8 *const at = input + (source + (offset)a * (offset)p.source_a + (offset)(column * 16));
      const u32 present = min(16u, width - column * 16);
      shift[i] = (u32)(reinterpret_cast<u64>(at) & 15);
      const u8 *const from = at - shift[i];
      const bool two = shift[i] + present > 16;
      if (from >= input + p.begin && from + (two ? 32 : 16) <= input + p.end) {
        low[i].word = read<uint4>(from);
        if (two) high[i] = read<uint4>(from + 16);
      } else {  // at the ends of the input, beside which no memory is read
        shift[i] = 0;
#pragma unroll
        for (u32 k = 0; k < 16; ++k)
          if (k < present) low[i].byte[k] = read<u8>(at + k);
      }
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const u32 line = next + i * (THREADS / PER_LINE);
      // So that lanes 16 lines apart use other banks.
      tile[line * PER_LINE + (column + line / 16) % PER_LINE] = shifted(low[i].word, high[i], shift[i]);
    }
  }
  __syncthreads();

  const u32 *const words = reinterpret_cast<const u32 *>(tile);
  const u32 lane = threadIdx.x % 16;
#pragma unroll 1
  for (u32 quad = threadIdx.x / 16; quad < TILE_B / 4; quad += THREADS / 16) {
    u32 taken[16], lines[4][4];
#pragma unroll
    for (u32 i = 0; i < 16; ++i)
      taken[i] = words[(lane * 16 + i) * (TILE_B / 4) + (quad / 4 + lane) % PER_LINE * 4 + quad % 4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      transpose_block(taken + 4 * i, &lines[0][i], &lines[1][i], &lines[2][i], &lines[3][i]);
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      const uint4 own = make_uint4(lines[k][0], lines[k][1], lines[k][2], lines[k][3]);
      const uint4 after = make_uint4(next_lane(own.x), next_lane(own.y), next_lane(own.z), next_lane(own.w));
      const u32 b = quad * 4 + k;
      u8 *const to = output + (target + (offset)b * (offset)p.target_b + (offset)first_a);
      const u32 skew = (u32)(-reinterpret_cast<u64>(to) & 15);
      const int at = (int)(lane * 16 + skew), a = first_a + at;
      if (b >= width || lane == 15 || a >= (int)p.extent_a || a + 16 <= 0) continue;
      union Made { uint4 word; u8 byte[16]; } made;
      made.word = shifted(own, after, skew);
      if (a >= 0 && a + 16 <= (int)p.extent_a) {
        write(to + at, made.word);
      } else {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (a + i >= 0 && a + i < (int)p.extent_a) write(to + at + i, made.byte[i]);
      }
    }
  }
}
