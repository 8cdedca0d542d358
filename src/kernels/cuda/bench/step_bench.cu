// Ops that read the cache, and what chooses: attention, index logits, top-k, router, sampling. Caches hold random rows;
// with many sequences they are far larger than the second-level cache.
#include <random>

#include "kernels/cuda/bench/bench.cuh"

namespace plumb::bench {
namespace {

constexpr int kRank = 512, kRope = 64, kNope = 192, kValue = 256, kTopk = 2048, kPageTokens = 64;
constexpr int kIndexHeads = 32, kIndexDim = 128;

// `rows` sequences of `context` tokens, each with its own pages in shuffled order; one row at the end of each.
struct Pages {
  Paging paging{};
  int64_t pages = 0;

  Pages(int64_t rows, int64_t context) {
    const int64_t each = (context + kPageTokens - 1) / kPageTokens;
    pages = rows * each;
    std::vector<int32_t> table(static_cast<size_t>(pages)), positions, sequence;
    for (int64_t i = 0; i < pages; ++i) table[static_cast<size_t>(i)] = static_cast<int32_t>(i);
    std::mt19937 random(5);
    std::shuffle(table.begin(), table.end(), random);
    for (int64_t r = 0; r < rows; ++r) {
      positions.push_back(static_cast<int32_t>(context - 1));
      sequence.push_back(static_cast<int32_t>(r));
    }
    paging = {.rows = static_cast<int>(rows),
              .sequences = static_cast<int>(rows),
              .positions = device_copy(positions),
              .sequence = device_copy(sequence),
              .page_table = device_copy(table),
              .page_table_stride = static_cast<int>(each),
              .page_tokens = kPageTokens};
  }
  ~Pages() {
    for (const int32_t* p : {paging.positions, paging.sequence, paging.page_table}) cudaFree(const_cast<int32_t*>(p));
  }
};

// FP8 rows of 656 bytes with scales that are numbers, or bf16.
__global__ void fill_latent(uint8_t* rows, int64_t count, bool fp8) {
  for (int64_t r = blockIdx.x; r < count; r += gridDim.x) {
    uint8_t* row = rows + r * (fp8 ? 656 : 1152);
    for (int i = static_cast<int>(threadIdx.x); i < 576; i += static_cast<int>(blockDim.x)) {
      const auto h = static_cast<uint32_t>((r * 576 + i) * 2654435761u);
      const float value = (static_cast<float>(h >> 16) - 32768.0f) * 0x1p-15f;
      if (!fp8)
        reinterpret_cast<uint16_t*>(row)[i] = f32_to_bf16(value);
      else if (i < 512)
        row[i] = f32_to_e4m3(value * 400.0f);
      else
        reinterpret_cast<uint16_t*>(row + 528)[i - 512] = f32_to_bf16(value);
    }
    if (fp8 && threadIdx.x < 4) reinterpret_cast<float*>(row + 512)[threadIdx.x] = 0.0025f;
  }
}
__global__ void fill_index_pages(uint8_t* pages, int64_t count) {
  for (int64_t p = blockIdx.x; p < count; p += gridDim.x) {
    uint8_t* page = pages + p * kPageTokens * (kIndexDim + 4);
    for (int i = static_cast<int>(threadIdx.x); i < kPageTokens * kIndexDim; i += static_cast<int>(blockDim.x)) {
      const auto h = static_cast<uint32_t>((p * 8192 + i) * 2654435761u);
      page[i] = f32_to_e4m3((static_cast<float>(h >> 16) - 32768.0f) * 0.012f);
    }
    if (threadIdx.x < kPageTokens) reinterpret_cast<float*>(page + kPageTokens * kIndexDim)[threadIdx.x] = 0.002f;
  }
}

// Index queries as IndexQuery leaves them beside FP8 keys: E4M3 codes times a scale, the largest of a head 448.
__global__ void fill_index_queries(float* q, int64_t count) {
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const uint32_t h = static_cast<uint32_t>(i) * 2654435761u;
    const float value = (static_cast<float>(h >> 16) - 32768.0f) * 0.012f;
    q[i] = (i % kIndexDim == 5 ? 448.0f : e4m3_to_f32(f32_to_e4m3(value))) * 0.0123f;
  }
}

void bench_attend(Bench& bench, int heads, KvFormat format, const Format& weight, int64_t rows) {
  constexpr int64_t kContext = 32768;
  const Pages pages(rows, kContext);
  const bool fp8 = format == KvFormat::Fp8Tile128;
  const KvGeometry geometry{.latent = format, .kv_lora_rank = kRank, .rope_dim = kRope, .page_tokens = kPageTokens};
  std::byte* cache = device_bytes(pages.pages * geometry.latent_page_bytes());
  fill_latent<<<4096, 256>>>(reinterpret_cast<uint8_t*>(cache), pages.pages * kPageTokens, fp8);
  std::vector<int32_t> chosen;
  std::mt19937 random(9);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<int32_t> all(static_cast<size_t>(kContext));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(kTopk);
    std::sort(all.begin(), all.end());
    chosen.insert(chosen.end(), all.begin(), all.end());
  }
  int32_t* indices = device_copy(chosen);
  const auto weights = make_weights(weight, int64_t{heads} * (kNope + kValue), kRank, 8);
  const Tensor q = device_rows(rows, int64_t{heads} * (kNope + kRope)),
               out = device_rows(rows, int64_t{heads} * kValue);
  const Kernel* kernel = bench.find({.op = Op::MlaAttend,
                                     .weight = weight,
                                     .kv = format,
                                     .m_lo = rows,
                                     .m_hi = rows,
                                     .n = weights[0].n(),
                                     .k = kRank,
                                     .heads = heads,
                                     .topk = kTopk,
                                     .rope = kRope});
  const double us = bench.timer.median(8, [&](int i) {
    Stream stream = bench.stream();
    const MlaAttendArgs args{.q = q,
                             .kv_b = &weights[static_cast<size_t>(i)],
                             .heads = heads,
                             .nope_dim = kNope,
                             .rope_dim = kRope,
                             .v_dim = kValue,
                             .softmax_scale = 0.0625f,
                             .topk_indices = Tensor(indices, DType::I32, {rows, kTopk}, Where::Cuda),
                             .paging = pages.paging,
                             .kv = {.geometry = geometry, .latent = cache},
                             .out = out};
    kernel->launch(&args, stream);
  });
  bench.print("attend " + std::to_string(heads) + " heads " + to_string(format) + " kv_b " + weight.to_string(),
              kernel->contract.name, rows, us,
              rows * kTopk * geometry.latent_row_bytes() + weight_bytes(weight, weights[0].n(), kRank));
  for (void* p : {static_cast<void*>(cache), static_cast<void*>(indices), q.data, out.data}) cudaFree(p);
  cudaFree(const_cast<std::byte*>(weights[0].prepared));
}

void bench_selection(Bench& bench, int64_t rows, int64_t context) {
  const Pages pages(rows, context);
  const KvGeometry geometry{.index_key = IndexKeyFormat::Fp8, .index_head_dim = kIndexDim, .page_tokens = kPageTokens};
  std::byte* cache = device_bytes(pages.pages * geometry.index_page_bytes());
  fill_index_pages<<<4096, 256>>>(reinterpret_cast<uint8_t*>(cache), pages.pages);
  const Tensor q = device_rows(rows, kIndexHeads * kIndexDim), weights = device_rows(rows, kIndexHeads);
  fill_index_queries<<<256, 256>>>(static_cast<float*>(q.data), rows * kIndexHeads * kIndexDim);
  const Tensor logits = device_rows(rows, context);
  const Call call{.op = Op::IndexerLogits,
                  .index_key = IndexKeyFormat::Fp8,
                  .m_lo = rows,
                  .m_hi = rows,
                  .k = kIndexDim,
                  .heads = kIndexHeads};
  const Kernel* kernel = bench.find(call);
  const std::string shape = std::to_string(context / 1024) + "k";
  double us = bench.timer.median(2, [&](int) {
    Stream stream = bench.stream();
    const IndexerLogitsArgs args{.q = q,
                                 .weights = weights,
                                 .heads = kIndexHeads,
                                 .head_dim = kIndexDim,
                                 .weight_scale = 0.17f,
                                 .softmax_scale = 0.088f,
                                 .paging = pages.paging,
                                 .kv = {.geometry = geometry, .index_keys = cache},
                                 .logits = logits};
    kernel->launch(&args, stream);
  });
  bench.print("indexer fp8 " + shape, kernel->contract.name, rows, us,
              rows * context * (kIndexDim + 4) + rows * context * 4);
  const Tensor indices(device_bytes(rows * kTopk * 4), DType::I32, {rows, kTopk}, Where::Cuda);
  kernel = bench.find({.op = Op::TopK, .m_lo = rows, .m_hi = rows, .topk = kTopk});
  us = bench.timer.median(2, [&](int) {
    Stream stream = bench.stream();
    const TopKArgs args{.logits = logits, .positions = pages.paging.positions, .topk = kTopk, .indices = indices};
    kernel->launch(&args, stream);
  });
  bench.print("top-k 2048 of " + shape, kernel->contract.name, rows, us, rows * context * 4);
  for (void* p : {static_cast<void*>(cache), q.data, weights.data, logits.data, indices.data}) cudaFree(p);
}

void bench_sample(Bench& bench, const char* name, const SampleRow& settings, int64_t rows) {
  constexpr int64_t kVocab = 154880;
  const Tensor logits = device_rows(rows, kVocab);
  std::vector<SampleRow> list(static_cast<size_t>(rows), settings);
  std::vector<SampleOut> out(static_cast<size_t>(rows));
  const Kernel* kernel = bench.find({.op = Op::Sample, .m_lo = rows, .m_hi = rows, .k = kVocab});
  const double us = bench.timer.median(
      1,
      [&](int) {
        Stream stream = bench.stream();
        const SampleArgs args{.logits = logits, .vocab = static_cast<int>(kVocab), .rows = list, .out = out};
        kernel->launch(&args, stream);
      },
      /*captured=*/false);
  bench.print(std::string("sample ") + name + ", host included", kernel->contract.name, rows, us, rows * kVocab * 4);
  cudaFree(logits.data);
}

void bench_router(Bench& bench, int64_t rows) {
  const auto gate = make_weights(kBf16, 256, 6144, 2);
  const Tensor x = device_rows(rows, 6144), logits = device_rows(rows, 256), weights = device_rows(rows, 8);
  const Tensor experts(device_bytes(rows * 8 * 4), DType::I32, {rows, 8}, Where::Cuda);
  const Kernel* kernel = bench.find(Op::Router, kBf16, 256, 6144, rows);
  const double us = bench.timer.median(2, [&](int i) {
    Stream stream = bench.stream();
    const RouterArgs args{
        .x = x, .gate = &gate[static_cast<size_t>(i)], .experts = experts, .weights = weights, .logits = logits};
    kernel->launch(&args, stream);
  });
  bench.print("router 6144 > 256 bf16", kernel->contract.name, rows, us, 256 * 6144 * 2);
  for (void* p : {x.data, logits.data, weights.data, experts.data}) cudaFree(p);
  cudaFree(const_cast<std::byte*>(gate[0].prepared));
}

}  // namespace

void bench_one_attention(Bench& bench) { bench_attend(bench, 64, KvFormat::Fp8Tile128, kBf16, 64); }

void bench_attention(Bench& bench) {
  for (const int heads : {8, 64})
    for (const KvFormat format : {KvFormat::Fp8Tile128, KvFormat::Bf16})
      for (const int64_t rows : {1, 8, 64}) bench_attend(bench, heads, format, kBf16, rows);
  bench_attend(bench, 64, KvFormat::Fp8Tile128, kFp8BlockF32, 64);
}

void bench_step_ops(Bench& bench) {
  bench_attention(bench);
  for (const int64_t context : {32768, 131072})
    for (const int64_t rows : {1, 8, 64}) bench_selection(bench, rows, context);
  for (const int64_t rows : {1, 64}) {
    bench_router(bench, rows);
    bench_sample(bench, "greedy", {.temperature = 0}, rows);
    bench_sample(bench, "temperature 1", {.temperature = 1}, rows);
    bench_sample(bench, "top-p 0.95", {.temperature = 1, .top_p = 0.95f}, rows);
  }
}

}  // namespace plumb::bench
