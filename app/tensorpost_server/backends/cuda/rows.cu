// Rows of the output that are parts of PARTS inputs side by side, with the fill value wherever no part is; any alignment.
// Some lanes of a warp write a chunk of a row. The words are the output's, aligned; what goes into one is shifted together
// out of two aligned words of the input. Words that a part only begins or ends in are copied item by item, so that nothing
// outside of a row is read or written.
#include "common.cuh"

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

// The item of the fill value's word from this byte on.
__device__ __forceinline__ Item fill_item(const u32 *fill, u32 byte) {
#if ITEM == 8
  return byte & 8 ? make_uint2(fill[2], fill[3]) : make_uint2(fill[0], fill[1]);
#else
  const u32 word = byte & 8 ? (byte & 4 ? fill[3] : fill[2]) : (byte & 4 ? fill[1] : fill[0]);
  return (Item)(word >> (byte & 3) * 8);
#endif
}

__device__ __forceinline__ void fill_bytes(const u32 *fill, u8 *to, int begin, int end, u32 lanes) {
  const int skew = (int)(reinterpret_cast<u64>(to) & 15), lane = (int)(threadIdx.x & ((1u << lanes) - 1));
  for (int at = ((begin + skew) & ~15) - skew + lane * 16; at < end; at += 16 << lanes) {
    if (at >= begin && at + 16 <= end) {
      write(to + at, make_uint4(fill[0], fill[1], fill[2], fill[3]));
    } else {
#pragma unroll 1
      for (int byte = max(begin, at); byte < min(end, at + 16); byte += ITEM)
        write(to + byte, fill_item(fill, (u32)(byte + skew) & 15));
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
