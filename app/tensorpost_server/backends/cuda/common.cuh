// What the kernels share. Compiled by NVRTC, which has no standard headers; a host compiler that defines the few
// names of CUDA used here can compile the kernels too, and the tests do.
//
// Every kernel takes byte pointers and byte strides, and a structure that geometry.py and its neighbours fill in.
// Offsets inside a launch are 32-bit unless WIDE says otherwise; counts are below 2^31.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if defined(WIDE) && WIDE
typedef i64 offset;
#else
typedef int offset;
#endif

#define MOST_AXES 20  // loops of a nest

// One loop of a nest. extent and its reciprocal divide an index; the strides are bytes.
struct Axis {
  u32 extent, magic, shift, unused;
  i64 source, target;
};

#ifdef __CUDACC__
#define SHARED_MEMORY(type, name) extern __shared__ type name[]
#endif

struct Divisor {
  u32 value, magic, shift;
};

// n / d for n < 2^31, with the multiplier and shift that geometry.reciprocal finds.
__device__ __forceinline__ u32 divide(u32 n, u32 magic, u32 shift) { return (__umulhi(n, magic) + n) >> shift; }
__device__ __forceinline__ u32 divide(u32 n, Divisor by) { return divide(n, by.magic, by.shift); }

template <int bytes> struct WordOf;
template <> struct WordOf<1> { typedef u8 type; };
template <> struct WordOf<2> { typedef u16 type; };
template <> struct WordOf<4> { typedef u32 type; };
template <> struct WordOf<8> { typedef uint2 type; };
template <> struct WordOf<16> { typedef uint4 type; };

template <class T> __device__ __forceinline__ T read(const u8 *at) { return __ldg(reinterpret_cast<const T *>(at)); }

// Outputs are written once and read by nobody soon: keep them out of the way of what is read again.
template <class T> __device__ __forceinline__ void write(u8 *at, T value) { __stcs(reinterpret_cast<T *>(at), value); }

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
