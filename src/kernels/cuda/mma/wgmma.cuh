// Hopper's products of a group of four warps (wgmma), and the layout of their operands: blocks of 64 elements of 16
// bits (or 128 of 8), a row 128 bytes, its 16-byte pieces swapped by the row's last three bits. Elsewhere than on
// sm_90a the instructions are left out; contracts refuse such devices.
//
// A warp w of the four has rows 16 w ... 16 w + 15 of the product: A and C fragments are those of mma.m16n8k16 (see
// fragments.cuh; A of 8-bit elements: rows g, g + 8 by k 4q ... 4q + 3, then the same at k + 16).
#pragma once

#include "kernels/cuda/mma/fragments.cuh"

namespace plumb::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PLUMB_WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define PLUMB_WGMMA(...) (void)0
#endif

inline constexpr int kGroupThreads = 128;   // that issue a product together
inline constexpr int kSwizzleBytes = 1024;  // eight rows; a block begins at a multiple of that

// 16-byte piece `piece` of row `row` of a block.
__device__ inline uint32_t swizzled(uint32_t block, int row, int piece) {
  return block + static_cast<uint32_t>(row * 128 + (piece ^ (row & 7)) * 16);
}
// An operand of 64-element blocks whose rows are the operand's rows (k runs along a row). The next 16 (32) of k: + 2.
__device__ inline uint64_t rows_of(uint32_t block) {
  return static_cast<uint64_t>((block & 0x3ffffu) >> 4) | uint64_t{1} << 16 | uint64_t{kSwizzleBytes / 16} << 32 |
         uint64_t{1} << 62;
}
// An operand whose rows are 64 neighbouring columns of a block: k runs over the block's rows. The next 16 of k: + 128.
__device__ inline uint64_t columns_of(uint32_t block) { return rows_of(block); }

// Before the first product, and after registers that products read or add to were written.
__device__ inline void begin_products() { PLUMB_WGMMA("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { PLUMB_WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `pending` committed groups are unfinished.
template <int pending>
__device__ void wait_for_products() {
  PLUMB_WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Keeps the compiler from moving uses of `d` over a wait.
template <int count>
__device__ void pin(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// What this thread wrote into shared memory becomes visible to products.
__device__ inline void publish_shared() { PLUMB_WGMMA("fence.proxy.async.shared::cta;" ::: "memory"); }

// More, or fewer, registers for the calling warps: all four of a group.
template <int count>
__device__ void more_registers() {
  PLUMB_WGMMA("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ void fewer_registers() {
  PLUMB_WGMMA("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
// The thread's number, asked anew: what was known of it before the registers were shared out has been seen lost (ptxas
// 13.0).
__device__ inline int thread_again() {
  int tid;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(tid));
  return tid;
}

// A barrier in shared memory that `count` arrivals open, again and again.
__device__ inline void init_barrier(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// `round`: how many times it has been opened before, of which the last bit counts.
__device__ inline void wait(uint32_t barrier, int round) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}" ::"r"(barrier),
      "r"(round & 1)
      : "memory");
}
// A barrier among warps by number (1 to 15), of `threads`.
__device__ inline void meet(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

#define PLUMB_D8(i)                                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define PLUMB_D32(i) PLUMB_D8(i), PLUMB_D8(i + 8), PLUMB_D8(i + 16), PLUMB_D8(i + 24)
#define PLUMB_R4 "%0,%1,%2,%3"
#define PLUMB_R8 PLUMB_R4 ",%4,%5,%6,%7"
#define PLUMB_R16 PLUMB_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define PLUMB_R32 PLUMB_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
// d += a . b, a in registers: `what` is shape and types, `rest` the registers behind d's, `end` how b is read.
#define PLUMB_MULTIPLY(what, registers, outputs, rest, last, end)                                                \
  PLUMB_WGMMA("{\n.reg .pred p;\nsetp.ne.b32 p, " last ", 0;\nwgmma.mma_async.sync.aligned." what " {" registers \
              "}, " rest ", p, 1, 1" end ";\n}"                                                                  \
              : outputs                                                                                          \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0))

// d = a . b (+ d, with `add`) of 64 rows; the number of columns is twice d's registers. b: rows_of its columns.
#define PLUMB_MULTIPLY_EACH(name, types, k, end)                                                         \
  __device__ inline void name(float(&d)[4], const uint32_t(&a)[4], uint64_t b, bool add) {               \
    PLUMB_MULTIPLY("m64n8" k "." types, PLUMB_R4, PLUMB_D4, "{%4,%5,%6,%7}, %8", "%9", end);             \
  }                                                                                                      \
  __device__ inline void name(float(&d)[8], const uint32_t(&a)[4], uint64_t b, bool add) {               \
    PLUMB_MULTIPLY("m64n16" k "." types, PLUMB_R8, PLUMB_D8(0), "{%8,%9,%10,%11}, %12", "%13", end);     \
  }                                                                                                      \
  __device__ inline void name(float(&d)[16], const uint32_t(&a)[4], uint64_t b, bool add) {              \
    PLUMB_MULTIPLY("m64n32" k "." types, PLUMB_R16, PLUMB_D16, "{%16,%17,%18,%19}, %20", "%21", end);    \
  }                                                                                                      \
  __device__ inline void name(float(&d)[32], const uint32_t(&a)[4], uint64_t b, bool add) {              \
    PLUMB_MULTIPLY("m64n64" k "." types, PLUMB_R32, PLUMB_D32(0), "{%32,%33,%34,%35}, %36", "%37", end); \
  }
#define PLUMB_D4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define PLUMB_D16 PLUMB_D8(0), PLUMB_D8(8)

PLUMB_MULTIPLY_EACH(multiply_f16, "f32.f16.f16", "k16", ", 0")
PLUMB_MULTIPLY_EACH(multiply_e4m3, "f32.e4m3.e4m3", "k32", "")

// a in shared memory too, both rows_of; `across`: a as columns_of.
#define PLUMB_MULTIPLY_SHARED(name, count, shape, registers, outputs, first, second, last, across)     \
  __device__ inline void name(float(&d)[count], uint64_t a, uint64_t b, bool add) {                    \
    PLUMB_WGMMA("{\n.reg .pred p;\nsetp.ne.b32 p, " last ", 0;\nwgmma.mma_async.sync.aligned." shape   \
                "k16.f32.bf16.bf16 {" registers "}, " first ", " second ", p, 1, 1, " across ", 0;\n}" \
                : outputs                                                                              \
                : "l"(a), "l"(b), "r"(add ? 1 : 0));                                                   \
  }
#define PLUMB_MULTIPLY_SHARED_EACH(name, across)                                               \
  PLUMB_MULTIPLY_SHARED(name, 4, "m64n8", PLUMB_R4, PLUMB_D4, "%4", "%5", "%6", across)        \
  PLUMB_MULTIPLY_SHARED(name, 8, "m64n16", PLUMB_R8, PLUMB_D8(0), "%8", "%9", "%10", across)   \
  PLUMB_MULTIPLY_SHARED(name, 16, "m64n32", PLUMB_R16, PLUMB_D16, "%16", "%17", "%18", across) \
  PLUMB_MULTIPLY_SHARED(name, 32, "m64n64", PLUMB_R32, PLUMB_D32(0), "%32", "%33", "%34", across)
PLUMB_MULTIPLY_SHARED_EACH(multiply_shared, "0")
PLUMB_MULTIPLY_SHARED_EACH(multiply_across, "1")

#undef PLUMB_MULTIPLY_SHARED_EACH
#undef PLUMB_MULTIPLY_SHARED
#undef PLUMB_MULTIPLY_EACH
#undef PLUMB_MULTIPLY

}  // namespace plumb::cuda
