#include "kernels/bench_kernels.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/cpu/probe.h"
#include "ops/kernel.h"
#include "tensor/encode.h"

namespace plumb {
namespace {

constexpr int64_t kColdBytes = int64_t{1} << 30;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
template <class F>
double time_of(F&& f) {
  const double begin = seconds();
  f();
  return seconds() - begin;
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

// Memory on 64-byte boundaries, on large pages where the system gives them, touched.
struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Free>;
Memory allocate(int64_t bytes) {
  constexpr int64_t kPage = int64_t{2} << 20;
  const size_t size = static_cast<size_t>((bytes + kPage - 1) / kPage * kPage);
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kPage), size)));
  if (memory == nullptr) return memory;
  madvise(memory.get(), size, MADV_HUGEPAGE);  // as the loader does; a wish
  std::memset(memory.get(), 0, size);
  return memory;
}

struct NamedFormat {
  const char* name;
  Format format;
};
constexpr NamedFormat kFormats[] = {{"bf16", kBf16},
                                    {"fp8_block", kFp8BlockF32},
                                    {"fp8_ue8m0", kFp8BlockUe8m0},
                                    {"nvfp4", kNvfp4},
                                    {"fp8_tensor", kFp8Tensor},
                                    {"fp8_channel", kFp8Channel},
                                    {"f16", kF16},
                                    {"f32", kF32}};

// A matrix of random values of a weight's size.
struct Source {
  std::vector<uint8_t> data{}, scale{};
  EncodedMatrix matrix{};
};
Source random_source(const Format& format, int64_t n, int64_t k) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  float values[4096];
  for (float& v : values) v = normal(random);
  Source s;
  s.data.resize(static_cast<size_t>(encoded_data_bytes(format, n, k)));
  s.scale.resize(static_cast<size_t>(encoded_scale_bytes(format, n, k)));
  const int64_t width = bits(format.element);
  for (int64_t i = 0; i < n * k * width / 8 / std::max<int64_t>(width / 8, 1); ++i) {
    const float v = values[random() % 4096];
    const uint16_t half = format.element == DType::F16 ? f32_to_f16(v * 0.02f) : f32_to_bf16(v * 0.02f);
    const float small = v * 0.02f;
    if (width == 32)
      std::memcpy(s.data.data() + i * 4, &small, 4);
    else if (width == 16)
      std::memcpy(s.data.data() + i * 2, &half, 2);
    else if (width == 8)
      s.data[static_cast<size_t>(i)] = f32_to_e4m3(v * 100.0f);
    else
      s.data[static_cast<size_t>(i)] = static_cast<uint8_t>(random());
  }
  for (size_t i = 0; i < s.scale.size() / (format.scale == ScaleType::F32 ? 4 : 1); ++i) {
    const float scale = 1e-4f * (1.0f + std::fabs(values[i % 4096]));
    if (format.scale == ScaleType::F32)
      std::memcpy(s.scale.data() + i * 4, &scale, 4);
    else
      s.scale[i] = format.scale == ScaleType::UE8M0 ? 113 : f32_to_e4m3(1.0f + std::fabs(values[i % 4096]) * 100);
  }
  s.matrix = {.format = format,
              .n = n,
              .k = k,
              .data = s.data.data(),
              .scale = s.scale.data(),
              .global_scale = format.global_scale ? 1e-4f : 1.0f};
  return s;
}

// As many copies of a prepared weight as make it cold.
struct Weights {
  Source source{};
  Memory memory{};
  int64_t each = 0;  // bytes of a prepared one
  int64_t count = 0;
  Layout layout = Layout::RowMajor;

  Weight weight(int64_t i) const {
    return {.name = "bench", .source = source.matrix, .layout = layout, .prepared = memory.get() + i % count * each};
  }
  int64_t encoded_bytes() const {
    const EncodedMatrix& m = source.matrix;
    return encoded_data_bytes(m.format, m.n, m.k) + encoded_scale_bytes(m.format, m.n, m.k);
  }
};
struct WeightsRequest {
  const Conversion& conversion;
  Format format{};
  int64_t n = 0, k = 0;
  int64_t total_bytes = kColdBytes;
  int64_t at_least = 1;
};
std::optional<Weights> make_weights(const WeightsRequest& request, ThreadPool& pool) {
  Weights w{.source = random_source(request.format, request.n, request.k), .layout = request.conversion.to};
  w.each = static_cast<int64_t>(request.conversion.bytes(w.source.matrix) + 63) / 64 * 64;
  w.count = std::max((request.total_bytes + w.each - 1) / w.each, request.at_least);
  w.memory = allocate(w.each * w.count);
  if (w.memory == nullptr) return std::nullopt;
  pool.parallel(
      [&](int worker, int workers) { request.conversion.fill(w.source.matrix, w.memory.get(), worker, workers); });
  for (int64_t i = 1; i < w.count; ++i)
    std::memcpy(w.memory.get() + i * w.each, w.memory.get(), static_cast<size_t>(w.each));
  return w;
}

struct Figures {
  std::string kernel{};
  std::string format{};
  int64_t rows = 0, n = 0, k = 0;
  double bytes = 0;  // of weights, as encoded, read in a run
  double flop = 0;   // of a run
  std::vector<double> run_seconds{}, read_share{}, peak_share{}, probe_read{}, probe_peak{};

  nlohmann::ordered_json to_json() const {
    const double t = median(run_seconds);
    return {{"kernel", kernel},
            {"format", format},
            {"rows", rows},
            {"n", n},
            {"k", k},
            {"pairs", run_seconds.size()},
            {"microseconds", t * 1e6},
            {"gb_per_s", bytes / t / 1e9},
            {"gflop_per_s", flop / t / 1e9},
            {"read_gb_per_s", median(probe_read)},
            {"peak_gflop_per_s", median(probe_peak)},
            {"share_of_read", median(read_share)},
            {"share_of_peak", median(peak_share)}};
  }
};

void print(const Figures& f, bool json) {
  if (json) {
    std::printf("%s\n", f.to_json().dump().c_str());
  } else {
    const double t = median(f.run_seconds);
    std::printf(
        "%-34s %-10s %6lld x %6lld x %5lld rows %10.0f us %7.1f GB/s %7.1f GFLOP/s  read %5.1f GB/s %5.1f %%  peak "
        "%6.1f %5.1f %%\n",
        f.kernel.c_str(), f.format.c_str(), static_cast<long long>(f.n), static_cast<long long>(f.k),
        static_cast<long long>(f.rows), t * 1e6, f.bytes / t / 1e9, f.flop / t / 1e9, median(f.probe_read),
        100 * median(f.read_share), median(f.probe_peak), 100 * median(f.peak_share));
  }
  std::fflush(stdout);
}

// Pairs of probe and kernel. `run(i)` is the i-th launch; all of the weights' memory is read by the probe.
struct Measure {
  const Weights& weights;
  ThreadPool& pool;
  int pairs = 20;
  int64_t launches = 1;  // of one timing
};
template <class Run>
void measure(const Measure& m, Figures& figures, Run&& run) {
  const size_t bytes = static_cast<size_t>(m.weights.each * m.weights.count);
  constexpr int64_t kRounds = 2000000;  // a few tens of milliseconds
  int64_t launch = 0;
  volatile uint64_t seen = 0;
  for (int pair = -1; pair < m.pairs; ++pair) {  // the first one warms up
    double flop = 0;
    const double read = time_of([&] { seen = seen | cpu::read_all(m.weights.memory.get(), bytes, m.pool); });
    const double peak = time_of([&] { flop = cpu::multiply_registers(kRounds, m.pool); });
    const double all = time_of([&] {
      for (int64_t i = 0; i < m.launches; ++i) run(launch++);
    });
    if (pair < 0) continue;
    const double each = all / static_cast<double>(m.launches);
    const double read_rate = static_cast<double>(bytes) / read, peak_rate = flop / peak;
    figures.run_seconds.push_back(each);
    figures.probe_read.push_back(read_rate / 1e9);
    figures.probe_peak.push_back(peak_rate / 1e9);
    figures.read_share.push_back(figures.bytes / each / read_rate);
    figures.peak_share.push_back(peak_rate > 0 ? figures.flop / each / peak_rate : 0);
  }
}

// Workspace, inputs and outputs of a launch.
struct Buffers {
  Memory workspace{};
  std::vector<float> x{}, y{};
  Stream stream{};
  Buffers(const Contract& contract, const Call& call, int64_t in, int64_t out, ThreadPool& pool) {
    stream.pool = &pool;
    stream.workspace_bytes = contract.workspace != nullptr ? contract.workspace(call) : 0;
    workspace = allocate(static_cast<int64_t>(stream.workspace_bytes) + 64);
    stream.workspace = workspace.get();
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(call.m_hi * in));
    for (float& v : x) v = normal(random);
    y.resize(static_cast<size_t>(call.m_hi * out));
  }
  Tensor rows_x(int64_t rows, int64_t width) { return Tensor(x.data(), DType::F32, {rows, width}); }
  Tensor rows_y(int64_t rows, int64_t width) { return Tensor(y.data(), DType::F32, {rows, width}); }
};

class Bench {
 public:
  explicit Bench(const BenchKernelsOptions& options) : options_(options), pool_(options.threads) {}

  int run() {
    for (const NamedFormat& f : kFormats) {
      const bool wanted = options_.formats.empty() ||
                          std::find(options_.formats.begin(), options_.formats.end(), f.name) != options_.formats.end();
      if (!wanted) continue;
      if (options_.op == "prepare") {
        prepare(f);
        continue;
      }
      for (const int64_t rows : options_.rows)
        for (const Kernel* kernel : kernels(f.format, rows)) bench(*kernel, f, rows);
    }
    if (done_ == 0) log_error("no kernel fits: op '" + options_.op + "', kernel '" + options_.kernel + "'");
    return done_ > 0 ? 0 : 1;
  }

 private:
  Op op() const { return options_.op == "mlp" ? Op::Mlp : options_.op == "moe" ? Op::Moe : Op::Linear; }
  Call call_of(const Format& format, int64_t rows) const {
    return {.op = op(),
            .weight = format,
            .m_lo = rows,
            .m_hi = rows,
            .n = options_.n,
            .k = options_.k,
            .topk = options_.topk};
  }
  // Those asked for by name, or the one that a plan would choose.
  std::vector<const Kernel*> kernels(const Format& format, int64_t rows) const {
    std::vector<const Kernel*> all;
    if (options_.op != "linear" && options_.op != "mlp" && options_.op != "moe") return all;
    for (const Kernel& kernel : registry_.kernels) {
      const Contract& c = kernel.contract;
      if (c.op != op() || c.reference || !judge(c, call_of(format, rows), device_).empty()) continue;
      if (registry_.conversion(c.weight_layout, format) == nullptr) continue;
      if (c.name.find(options_.kernel) != std::string::npos) all.push_back(&kernel);
    }
    std::sort(all.begin(), all.end(),
              [](const Kernel* a, const Kernel* b) { return a->contract.preference > b->contract.preference; });
    if (options_.kernel.empty() && all.size() > 1) all.erase(all.begin() + 1, all.end());
    return all;
  }

  void bench(const Kernel& kernel, const NamedFormat& f, int64_t rows) {
    const Conversion& conversion = *registry_.conversion(kernel.contract.weight_layout, f.format);
    Figures figures{.kernel = kernel.contract.name, .format = f.name, .rows = rows, .n = options_.n, .k = options_.k};
    const bool done = op() == Op::Linear ? linear(kernel, conversion, figures, f.format)
                                         : experts(kernel, conversion, figures, f.format);
    if (!done) {
      log_error("not enough memory for 1 GB of weights");
      return;
    }
    print(figures, options_.json);
    ++done_;
  }

  // Launches of one timing: all weights once when it's quick, else about as long as the probes take.
  static int64_t launches(const Weights& w, double flop, int64_t of_weights) {
    return std::clamp<int64_t>(static_cast<int64_t>(1e11 / flop), 1, std::max<int64_t>(w.count / of_weights, 1));
  }

  bool linear(const Kernel& kernel, const Conversion& conversion, Figures& f, const Format& format) {
    const std::optional<Weights> w =
        make_weights({.conversion = conversion, .format = format, .n = f.n, .k = f.k}, pool_);
    if (!w) return false;
    f.bytes = static_cast<double>(w->encoded_bytes());
    f.flop = 2.0 * static_cast<double>(f.rows * f.n * f.k);
    Buffers buffers(kernel.contract, call_of(format, f.rows), f.k, f.n, pool_);
    const Measure how{.weights = *w, .pool = pool_, .pairs = options_.pairs, .launches = launches(*w, f.flop, 1)};
    measure(how, f, [&](int64_t i) {
      const Weight weight = w->weight(i);
      const LinearArgs args{.w = &weight, .x = buffers.rows_x(f.rows, f.k), .y = buffers.rows_y(f.rows, f.n)};
      kernel.launch(&args, buffers.stream);
    });
    return true;
  }

  // Experts: gate and up [n, k], down [k, n]. A gate's bytes may stand for a down's: they are as many.
  bool experts(const Kernel& kernel, const Conversion& conversion, Figures& f, const Format& format) {
    const int64_t topk = op() == Op::Moe ? options_.topk : 1;
    const std::optional<Weights> w =
        make_weights({.conversion = conversion, .format = format, .n = f.n, .k = f.k}, pool_);
    const std::optional<Weights> d =
        make_weights({.conversion = conversion, .format = format, .n = f.k, .k = f.n}, pool_);
    if (!w || !d) return false;
    const int64_t count =
        op() == Op::Moe ? std::max(topk, std::min(w->count / 2, d->count)) : std::min(w->count / 2, d->count);
    std::vector<Weight> gate, up, down;
    for (int64_t e = 0; e < count; ++e) {
      gate.push_back(w->weight(2 * e));
      up.push_back(w->weight(2 * e + 1));
      down.push_back(d->weight(e));
    }
    f.flop = 6.0 * static_cast<double>(f.rows * topk * f.n * f.k);
    Buffers buffers(kernel.contract, call_of(format, f.rows), f.k, f.k, pool_);
    std::vector<int32_t> ids(static_cast<size_t>(f.rows * topk));
    std::vector<float> weights(ids.size(), 0.125f);
    // Consecutive choices over all experts: spread evenly, the next launch goes on where the last one ended.
    const int64_t touched = std::min<int64_t>(f.rows * topk, count);
    f.bytes = static_cast<double>(touched * (2 * w->encoded_bytes() + d->encoded_bytes()));
    const Measure how{.weights = *w,
                      .pool = pool_,
                      .pairs = options_.pairs,
                      .launches = std::min(launches(*w, f.flop, 2), std::max<int64_t>(count / touched, 1))};
    int64_t next = 0;
    measure(how, f, [&](int64_t i) {
      if (op() == Op::Mlp) {
        const size_t e = static_cast<size_t>(i % count);
        const MlpArgs args{.gate = &gate[e],
                           .up = &up[e],
                           .down = &down[e],
                           .x = buffers.rows_x(f.rows, f.k),
                           .y = buffers.rows_y(f.rows, f.k)};
        return kernel.launch(&args, buffers.stream);
      }
      for (int32_t& id : ids) id = static_cast<int32_t>(next++ % count);
      const MoeArgs args{.gate = gate,
                         .up = up,
                         .down = down,
                         .x = buffers.rows_x(f.rows, f.k),
                         .experts = Tensor(ids.data(), DType::I32, {f.rows, topk}),
                         .weights = Tensor(weights.data(), DType::F32, {f.rows, topk}),
                         .y = buffers.rows_y(f.rows, f.k)};
      kernel.launch(&args, buffers.stream);
    });
    return true;
  }

  // The conversion at load against copying as many bytes, from distinct sources to distinct places.
  void prepare(const NamedFormat& f) {
    const Conversion* conversion = registry_.conversion(Layout::CpuStrip16, f.format);
    if (conversion == nullptr) return;
    const Source one = random_source(f.format, options_.n, options_.k);
    const int64_t data = encoded_data_bytes(f.format, options_.n, options_.k);
    const int64_t in = (data + encoded_scale_bytes(f.format, options_.n, options_.k) + 255) / 256 * 256;
    const int64_t each = static_cast<int64_t>(conversion->bytes(one.matrix) + 255) / 256 * 256;
    const int64_t count = (kColdBytes + each - 1) / each;
    const Memory from = allocate(in * count), to = allocate(each * count);
    if (from == nullptr || to == nullptr) return log_error("not enough memory for 2 GB of weights");
    std::vector<double> share, rate, copy_rate;
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(from.get() + i * in, one.data.data(), one.data.size());
      if (!one.scale.empty()) std::memcpy(from.get() + i * in + data, one.scale.data(), one.scale.size());
    }
    for (int pair = -1; pair < options_.pairs; ++pair) {
      const double copy =
          time_of([&] { cpu::copy_all(to.get(), from.get(), static_cast<size_t>(std::min(in, each) * count), pool_); });
      const double fill = time_of([&] {
        for (int64_t i = 0; i < count; ++i) {
          EncodedMatrix matrix = one.matrix;
          matrix.data = from.get() + i * in;
          matrix.scale = from.get() + i * in + data;
          pool_.parallel(
              [&](int worker, int workers) { conversion->fill(matrix, to.get() + i * each, worker, workers); });
        }
      });
      if (pair < 0) continue;
      share.push_back(copy / fill);
      rate.push_back(static_cast<double>(in * count) / fill / 1e9);
      copy_rate.push_back(static_cast<double>(in * count) / copy / 1e9);
    }
    ++done_;
    if (options_.json)
      std::printf("%s\n", nlohmann::ordered_json{{"op", "prepare"},
                                                 {"format", f.name},
                                                 {"n", options_.n},
                                                 {"k", options_.k},
                                                 {"pairs", share.size()},
                                                 {"gb_per_s", median(rate)},
                                                 {"copy_gb_per_s", median(copy_rate)},
                                                 {"share_of_copy", median(share)}}
                              .dump()
                              .c_str());
    else
      std::printf("prepare %-10s %6lld x %6lld %7.1f GB/s  copy %5.1f GB/s %5.1f %%\n", f.name,
                  static_cast<long long>(options_.n), static_cast<long long>(options_.k), median(rate),
                  median(copy_rate), 100 * median(share));
    std::fflush(stdout);
  }

  BenchKernelsOptions options_;
  ThreadPool pool_;
  DeviceInfo device_ = detect_cpu();
  Registry registry_ = make_registry();
  int done_ = 0;
};

}  // namespace

int bench_kernels(const BenchKernelsOptions& options) { return Bench(options).run(); }

}  // namespace plumb
