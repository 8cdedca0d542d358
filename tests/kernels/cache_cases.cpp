#include <functional>

#include "matrix_case.h"
#include "ops/kv_rows.h"

namespace plumb::testing {
namespace {

// Tables of one angle a row and pair.
struct Angles {
  Angles(int64_t rows, int rope_dim, Rng& rng) : half(rope_dim / 2) {
    for (int64_t i = 0; i < rows * half; ++i) {
      const double angle = static_cast<double>(rng() % 100000) * 0.01;
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  int half;
  CaseVector<float> cos{}, sin{};
};

struct CacheShape {
  Op op = Op::KvWrite;
  KvGeometry geometry{};
  int heads = 1;  // index queries
  bool interleaved = true;
  Values values = Values::Normal;
  Numerics numerics{};
};

class CacheCase : public MatrixCase {
 public:
  CacheCase(const CacheShape& shape, std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : shape_(shape),
        step_(std::move(lengths), rows_each, true, rng),
        angles_(step_.rows(), shape.geometry.rope_dim, rng) {
    rows_ = step_.rows();
    for (int64_t r = 0; r < rows_; ++r) {
      if (step_.sequence[static_cast<size_t>(r)] < 0) padding_row_ = r;
    }
    const int64_t page =
        shape.op == Op::KvWrite ? shape.geometry.latent_page_bytes() : shape.geometry.index_page_bytes();
    if (shape.op != Op::IndexQuery) cache_ = Buffer(static_cast<size_t>(page * step_.pages), 0);
  }
  std::string describe() const override {
    return to_string(shape_.op) + " rows " + std::to_string(rows_) + " rank " +
           std::to_string(shape_.geometry.kv_lora_rank) + " index dim " +
           std::to_string(shape_.geometry.index_head_dim) + " " + to_string(shape_.geometry.latent) + " " +
           to_string(shape_.geometry.index_key) + " " + to_string(shape_.values) +
           (shape_.numerics.round_bf16 ? " bf16" : "") + (shape_.numerics.index_hadamard ? " hadamard" : "");
  }
  Call call() const override {
    Call call{.op = shape_.op, .m_lo = rows_, .m_hi = rows_, .heads = shape_.heads, .numerics = shape_.numerics};
    if (shape_.op == Op::KvWrite)
      call.kv = shape_.geometry.latent;
    else
      call.index_key = shape_.geometry.index_key;
    return call;
  }
  void reset(uint8_t poison) override {
    MatrixCase::reset(poison);
    poison_ = poison;
    if (cache_.bytes() > 0) cache_.fill(poison);
  }
  std::vector<std::byte> outputs() const override {
    std::vector<std::byte> bytes = MatrixCase::outputs();
    if (cache_.bytes() == 0) return bytes;
    // What nobody wrote holds whatever it was filled with: cleared, so that two runs compare.
    for (size_t i = 0; i < cache_.bytes(); ++i) bytes.push_back(written_[i] ? cache_.data()[i] : std::byte{0});
    return bytes;
  }
  bool whole() const override { return MatrixCase::whole() && (cache_.bytes() == 0 || cache_.fences_whole()); }
  void expect(Stream& stream) override {
    MatrixCase::expect(stream);
    if (cache_.bytes() == 0) return;
    want_cache_ = Buffer(cache_.bytes());
    want_cache_.copy_from(cache_);
    written_.assign(cache_.bytes(), true);
    std::vector<std::byte> first(cache_.data(), cache_.data() + cache_.bytes());
    reset(0xa7);
    launch(reference_of(shape_.op), stream, 0, rows_);
    for (size_t i = 0; i < first.size(); ++i)
      written_[i] = !(first[i] == std::byte{0x5a} && cache_.data()[i] == std::byte{0xa7});
  }

 protected:
  KvView view(Side side) {
    KvView view{.geometry = shape_.geometry};
    (shape_.op == Op::KvWrite ? view.latent : view.index_keys) = (side == Side::Want ? want_cache_ : cache_).data();
    return view;
  }
  // The cache must be exactly what rounding these rows into a cache full of the poison gives.
  void check_cache(const std::function<void(int64_t row, std::byte* cache)>& put, Problems& problems) {
    Buffer expected(cache_.bytes());
    expected.fill(poison_);
    for (int64_t r = 0; r < rows_; ++r) {
      if (r != padding_row_) put(r, expected.data());
    }
    if (!expected.same_as(cache_))
      problems.push_back("cache: other bytes than the rounded rows, or bytes outside them");
  }

  CacheShape shape_;
  Step step_;
  Angles angles_;
  Buffer cache_{0};
  Buffer want_cache_{0};
  std::vector<bool> written_{};
  uint8_t poison_ = 0;
};

class KvWriteCase : public CacheCase {
 public:
  KvWriteCase(const CacheShape& shape, std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : CacheCase(shape, std::move(lengths), rows_each, rng),
        weight_(static_cast<size_t>(shape.geometry.kv_lora_rank) * 4, 4) {
    fill_values(weight_.as<float>(), shape.geometry.kv_lora_rank, Values::Normal, rng);
    add_input(shape.geometry.kv_lora_rank + shape.geometry.rope_dim, shape.values, rng);
    add_output(shape.geometry.kv_lora_rank);
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return KvWriteArgs{.kv_a = in(0).tensor(first, count),
                       .weight = weight_.as<float>(),
                       .eps = 1e-6,
                       .cos = angles_.cos.data() + first * angles_.half,
                       .sin = angles_.sin.data() + first * angles_.half,
                       .paging = step_.paging(first, count),
                       .kv = view(side),
                       .latent = output(0, side).tensor(first, count),
                       .numerics = shape_.numerics};
  }
  void check(const Contract& contract, Problems& problems) override {
    MatrixCase::check(contract, problems);
    const KvGeometry& g = shape_.geometry;
    const Paging paging = step_.paging(0, rows_);
    std::vector<float> mine(static_cast<size_t>(g.kv_lora_rank + g.rope_dim));
    const auto slot = [&](int64_t r, std::byte* base) {
      return latent_row({.geometry = g, .latent = base}, paging, step_.sequence[static_cast<size_t>(r)],
                        step_.positions[static_cast<size_t>(r)]);
    };
    check_cache(
        [&](int64_t r, std::byte* base) {
          read_latent_row(g, slot(r, cache_.data()), mine.data());  // the rope part is judged by value
          write_latent_row(g, output(0).row(r), mine.data() + g.kv_lora_rank, slot(r, base));
        },
        problems);
  }

 private:
  Buffer weight_;
};

class IndexQueryCase : public CacheCase {
 public:
  IndexQueryCase(const CacheShape& shape, std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : CacheCase(shape, std::move(lengths), rows_each, rng) {
    const int64_t width = int64_t{shape.heads} * shape.geometry.index_head_dim;
    add_in_out(width, shape.values, rng);
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return IndexQueryArgs{.q = output(0, side).tensor(first, count),
                          .heads = shape_.heads,
                          .head_dim = shape_.geometry.index_head_dim,
                          .rope_dim = shape_.geometry.rope_dim,
                          .interleaved = shape_.interleaved,
                          .cos = angles_.cos.data() + first * angles_.half,
                          .sin = angles_.sin.data() + first * angles_.half,
                          .index_key = shape_.geometry.index_key,
                          .numerics = shape_.numerics};
  }
};

class IndexKeyWriteCase : public CacheCase {
 public:
  IndexKeyWriteCase(const CacheShape& shape, std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : CacheCase(shape, std::move(lengths), rows_each, rng),
        weight_(static_cast<size_t>(shape.geometry.index_head_dim) * 4, 4),
        bias_(weight_.bytes(), 4) {
    fill_values(weight_.as<float>(), shape.geometry.index_head_dim, Values::Normal, rng);
    fill_values(bias_.as<float>(), shape.geometry.index_head_dim, Values::Normal, rng);
    add_in_out(shape.geometry.index_head_dim, shape.values, rng);
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return IndexKeyWriteArgs{.k = output(0, side).tensor(first, count),
                             .weight = weight_.as<float>(),
                             .bias = bias_.as<float>(),
                             .eps = 1e-6,
                             .rope_dim = shape_.geometry.rope_dim,
                             .interleaved = shape_.interleaved,
                             .cos = angles_.cos.data() + first * angles_.half,
                             .sin = angles_.sin.data() + first * angles_.half,
                             .paging = step_.paging(first, count),
                             .kv = view(side),
                             .numerics = shape_.numerics};
  }
  void check(const Contract& contract, Problems& problems) override {
    MatrixCase::check(contract, problems);
    const KvGeometry& g = shape_.geometry;
    const Paging paging = step_.paging(0, rows_);
    check_cache(
        [&](int64_t r, std::byte* base) {
          const int32_t position = step_.positions[static_cast<size_t>(r)];
          std::byte* page =
              index_page({.geometry = g, .index_keys = base}, paging, step_.sequence[static_cast<size_t>(r)], position);
          write_index_key(g, output(0).row(r), page, position % paging.page_tokens);
        },
        problems);
  }

 private:
  Buffer weight_, bias_;
};

template <class Case>
void add_shapes(const Contract& contract, const std::vector<CacheShape>& shapes, Cases& out, Rng& rng) {
  const int most = contract.limits.m_max > 0 ? static_cast<int>(std::max<int64_t>(1, contract.limits.m_max / 3)) : 70;
  for (CacheShape shape : shapes) {
    for (const Numerics& numerics : edge_numerics(contract)) {
      shape.numerics = numerics;
      out.push_back(std::make_unique<Case>(shape, std::vector<int32_t>{1}, 1, rng));
      out.push_back(std::make_unique<Case>(shape, std::vector<int32_t>{70, 5, 129}, std::min(most, 70), rng));
    }
    shape.numerics = {};
    for (const Values values : kAllValues) {
      shape.values = values;
      out.push_back(std::make_unique<Case>(shape, std::vector<int32_t>{65, 64}, std::min(most, 2), rng));
    }
    shape.values = Values::Normal;
    shape.interleaved = false;
    if (shape.op != Op::KvWrite)
      out.push_back(std::make_unique<Case>(shape, std::vector<int32_t>{65, 64}, std::min(most, 2), rng));
  }
}

}  // namespace

void add_cache_cases(const Contract& contract, Cases& out) {
  Rng rng(5);
  std::vector<CacheShape> shapes;
  if (contract.op == Op::KvWrite) {
    for (const KvFormat format : contract.kv) {
      if (format == KvFormat::None) continue;
      for (const auto& [rank, rope] : {std::pair{512, 64}, std::pair{32, 16}, std::pair{200, 8}}) {
        shapes.push_back({.op = contract.op, .geometry = {.latent = format, .kv_lora_rank = rank, .rope_dim = rope}});
      }
    }
    add_shapes<KvWriteCase>(contract, shapes, out, rng);
  }
  if (contract.op != Op::IndexQuery && contract.op != Op::IndexKeyWrite) return;
  for (const IndexKeyFormat format : contract.index_key) {
    if (format == IndexKeyFormat::None) continue;
    for (const auto& [dim, rope] : {std::pair{128, 64}, std::pair{32, 16}, std::pair{64, 64}}) {
      shapes.push_back({.op = contract.op,
                        .geometry = {.index_key = format, .rope_dim = rope, .index_head_dim = dim},
                        .heads = contract.op == Op::IndexQuery ? 5 : 1});
    }
  }
  if (contract.op == Op::IndexQuery)
    add_shapes<IndexQueryCase>(contract, shapes, out, rng);
  else
    add_shapes<IndexKeyWriteCase>(contract, shapes, out, rng);
}

}  // namespace plumb::testing
