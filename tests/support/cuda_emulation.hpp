// Enough of CUDA to run a kernel on the host, one thread after the other. Every thread of a block is a context of its
// own, so that __syncthreads can wait for the others.
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define SHARED_MEMORY(type, name) type *const name = reinterpret_cast<type *>(emulated.shared)

// Overloaded, as CUDA's are.
using std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atan2, std::atanh, std::ceil, std::cos, std::cosh;
using std::erf, std::exp, std::expm1, std::fabs, std::floor, std::fmod, std::log, std::log1p, std::pow, std::rint;
using std::sin, std::sinh, std::sqrt, std::tan, std::tanh, std::trunc;

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct Index { unsigned x; };

static Index threadIdx, blockIdx;

static struct {
  char *shared;
  ucontext_t scheduler;
  std::vector<ucontext_t> threads;
  std::vector<char> done;
  unsigned current;
} emulated;

static inline void __syncthreads() { swapcontext(&emulated.threads[emulated.current], &emulated.scheduler); }
// Every thread of the block calls it, and the launch has shared memory: else no thread waits for another.
template <class T> static inline T __shfl_down_sync(unsigned, T value, unsigned behind) {
  static T given[1024];
  const unsigned thread = threadIdx.x, from = thread % 32 + behind;
  given[thread] = value;
  __syncthreads();
  const T found = given[from < 32 ? thread + behind : thread];
  __syncthreads();
  return found;
}
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (bits & 31));
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long both = (unsigned long long)high << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}
static inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }

// A misaligned access is an error on the device, so it is one here.
template <class T> static inline void check(const T *at) {
  if (reinterpret_cast<unsigned long long>(at) % sizeof(T)) std::abort();
}
template <class T> static inline T __ldg(const T *at) {
  check(at);
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T> static inline void __stcs(T *at, T value) {
  check(at);
  std::memcpy(at, &value, sizeof(T));
}

template <class... A, std::size_t... i>
static void call(void (*kernel)(A...), void **arguments, std::index_sequence<i...>) {
  kernel(*static_cast<A *>(arguments[i])...);
}

template <class... A> struct Launcher {
  static void (*kernel)(A...);
  static void **arguments;
  static void thread() {
    call(kernel, arguments, std::index_sequence_for<A...>());
    emulated.done[emulated.current] = 1;
    swapcontext(&emulated.threads[emulated.current], &emulated.scheduler);
  }
};
template <class... A> void (*Launcher<A...>::kernel)(A...);
template <class... A> void **Launcher<A...>::arguments;

template <class... A>
static void launch(void (*kernel)(A...), unsigned grid, unsigned block, unsigned shared, void **arguments) {
  typedef Launcher<A...> This;
  const std::size_t stack = 64 << 10;
  std::vector<char> stacks(block * stack);
  std::vector<uint4> memory((shared + 15) / 16 + 1);
  emulated.shared = reinterpret_cast<char *>(memory.data());
  emulated.threads.resize(block);
  if (!shared) {  // then no thread waits for another
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x)
      for (threadIdx.x = 0; threadIdx.x < block; ++threadIdx.x)
        call(kernel, arguments, std::index_sequence_for<A...>());
    return;
  }
  This::kernel = kernel;
  This::arguments = arguments;
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    emulated.done.assign(block, 0);
    for (unsigned i = 0; i < block; ++i) {
      getcontext(&emulated.threads[i]);
      emulated.threads[i].uc_stack.ss_sp = &stacks[i * stack];
      emulated.threads[i].uc_stack.ss_size = stack;
      makecontext(&emulated.threads[i], &This::thread, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (unsigned i = 0; i < block; ++i) {
        if (emulated.done[i]) continue;
        emulated.current = threadIdx.x = i;
        swapcontext(&emulated.scheduler, &emulated.threads[i]);
        left = left || !emulated.done[i];
      }
    }
  }
}
