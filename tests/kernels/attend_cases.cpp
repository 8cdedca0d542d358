#include <algorithm>

#include "matrix_case.h"
#include "ops/kv_rows.h"

namespace plumb::testing {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// A case over a cache whose unwritten slots are NaN.
class PagedCase : public MatrixCase {
 public:
  PagedCase(std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : lengths_(std::move(lengths)), step_(lengths_, rows_each, true, rng) {
    rows_ = step_.rows();
    for (int64_t r = 0; r < rows_; ++r) {
      if (step_.sequence[static_cast<size_t>(r)] < 0) padding_row_ = r;
    }
  }
  bool whole() const override { return MatrixCase::whole() && cache_.fences_whole(); }

 protected:
  // put(sequence, position) writes one token.
  template <class Put>
  void fill_cache(int64_t page_bytes, Put put) {
    cache_ = Buffer(static_cast<size_t>(page_bytes * step_.pages));
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int32_t i = 0; i < lengths_[s]; ++i) put(static_cast<int32_t>(s), i);
    }
  }

  std::vector<int32_t> lengths_;
  Step step_;
  Buffer cache_{0};
};

struct IndexShape {
  int heads = 1, head_dim = 8;
  IndexKeyFormat format = IndexKeyFormat::F32;
  Values values = Values::Normal;
};

class IndexerLogitsCase : public PagedCase {
 public:
  IndexerLogitsCase(const IndexShape& shape, std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : PagedCase(std::move(lengths), rows_each, rng), shape_(shape) {
    geometry_ = {.index_key = shape.format, .index_head_dim = shape.head_dim};
    std::vector<float> key(static_cast<size_t>(shape.head_dim));
    fill_cache(geometry_.index_page_bytes(), [&](int32_t s, int32_t i) {
      fill_values(key.data(), shape.head_dim, shape.values == Values::Denormals ? Values::Normal : shape.values, rng);
      write_index_key(geometry_, key.data(), index_page(view(), step_.paging(0, rows_), s, i), i % step_.page_tokens);
    });
    add_input(int64_t{shape.heads} * shape.head_dim, shape.values, rng);
    add_input(shape.heads, Values::Normal, rng);
    add_output(*std::max_element(lengths_.begin(), lengths_.end()) + 3);
  }
  std::string describe() const override {
    return "indexer_logits rows " + std::to_string(rows_) + " heads " + std::to_string(shape_.heads) + " dim " +
           std::to_string(shape_.head_dim) + " " + to_string(shape_.format) + " " + to_string(shape_.values);
  }
  Call call() const override {
    return {.op = Op::IndexerLogits,
            .index_key = shape_.format,
            .m_lo = rows_,
            .m_hi = rows_,
            .k = shape_.head_dim,
            .heads = shape_.heads};
  }

 protected:
  KvView view() { return {.geometry = geometry_, .index_keys = cache_.data()}; }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return IndexerLogitsArgs{.q = in(0).tensor(first, count),
                             .weights = in(1).tensor(first, count),
                             .heads = shape_.heads,
                             .head_dim = shape_.head_dim,
                             .weight_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.heads))),
                             .softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.head_dim))),
                             .paging = step_.paging(first, count),
                             .kv = view(),
                             .logits = output(0, side).tensor(first, count)};
  }

 private:
  IndexShape shape_;
  KvGeometry geometry_{};
};

// Scores with many, few or no ties; what lies beyond a row's positions is NaN.
class TopKCase : public MatrixCase {
 public:
  TopKCase(std::vector<int32_t> lengths, int topk, int distinct, Rng& rng) : topk_(topk), distinct_(distinct) {
    rows_ = static_cast<int64_t>(lengths.size());
    const int64_t columns = *std::max_element(lengths.begin(), lengths.end()) + 2;
    auto logits = std::make_unique<Matrix>(rows_, columns);
    for (int64_t r = 0; r < rows_; ++r) {
      positions_.push_back(lengths[static_cast<size_t>(r)] - 1);
      logits->fill_row(r, std::numeric_limits<float>::quiet_NaN());
      fill_values(logits->row(r), lengths[static_cast<size_t>(r)], Values::Normal, rng);
      for (int32_t i = 0; i < lengths[static_cast<size_t>(r)]; ++i) {
        float& x = logits->row(r)[i];
        if (distinct > 0)
          x = static_cast<float>(static_cast<int64_t>(rng() % static_cast<uint64_t>(distinct)) - distinct / 2) *
              (rng() % 2 == 0 ? 1.0f : -1.0f);
        if (distinct > 0 && rng() % 7 == 0) x = -0.0f;  // equal to 0: one tie
      }
    }
    add_input(std::move(logits));
    add_output(topk);
  }
  std::string describe() const override {
    return "topk rows " + std::to_string(rows_) + " columns " + std::to_string(positions_[0] + 1) + " k " +
           std::to_string(topk_) + " distinct " + std::to_string(distinct_);
  }
  Call call() const override { return {.op = Op::TopK, .m_lo = rows_, .m_hi = rows_, .topk = topk_}; }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return TopKArgs{.logits = in(0).tensor(first, count),
                    .positions = positions_.data() + first,
                    .topk = topk_,
                    .indices = output(0, side).tensor(first, count, DType::I32)};
  }

 private:
  int topk_, distinct_;
  CaseVector<int32_t> positions_{};
};

// Three sequences, one of them with two rows when sets are kept; row 2 is padding.
class DraftSetCase : public MatrixCase {
 public:
  DraftSetCase(int topk, int kept, bool extend, Rng& rng) : topk_(topk), extend_(extend) {
    const int width = topk + kRoom;
    sequence_ = extend ? CaseVector<int32_t>{2, 0, -1, 1} : CaseVector<int32_t>{2, 0, -1, 0, 1};
    rows_ = static_cast<int64_t>(sequence_.size());
    padding_row_ = 2;
    for (int64_t r = 0; r < rows_; ++r) positions_.push_back(1000 + static_cast<int32_t>(r));
    auto sets = std::make_unique<Matrix>(3, width);
    for (int64_t s = 0; s < 3; ++s) {
      std::fill_n(sets->ints(s), width, -1);
      for (int i = 0; i < kept; ++i) sets->ints(s)[i] = 3 * i + static_cast<int32_t>(s);
    }
    if (kept > 0) sets->ints(0)[kept - 1] = positions_[1];  // already there
    sets_original_ = std::make_unique<Matrix>(3, width);
    sets_original_->copy_from(*sets);
    sets_ = std::move(sets);
    if (extend) {
      add_output(width);
    } else {
      auto selection = std::make_unique<Matrix>(rows_, topk);
      for (int64_t r = 0; r < rows_; ++r)
        for (int i = 0; i < topk; ++i) selection->ints(r)[i] = i < topk - 2 ? static_cast<int32_t>(rng() % 1000u) : -1;
      add_input(std::move(selection));
    }
  }
  std::string describe() const override {
    return "draft_set topk " + std::to_string(topk_) + (extend_ ? " extend" : " keep");
  }
  Call call() const override { return {.op = Op::DraftSet, .m_lo = rows_, .m_hi = rows_, .k = topk_}; }
  void reset(uint8_t poison) override {
    MatrixCase::reset(poison);
    sets_->copy_from(*sets_original_);
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return DraftSetArgs{.extend = extend_,
                        .selection = (extend_ ? output(0, side) : in(0)).tensor(first, count, DType::I32),
                        .sets = sets_->tensor(0, 3, DType::I32),
                        .paging = {.rows = static_cast<int>(count),
                                   .sequences = 3,
                                   .positions = positions_.data() + first,
                                   .sequence = sequence_.data() + first}};
  }
  std::vector<std::byte> outputs() const override {
    std::vector<std::byte> bytes = MatrixCase::outputs();
    for (int64_t s = 0; s < 3; ++s) append(bytes, sets_->ints(s), static_cast<size_t>(sets_->columns()) * 4);
    return bytes;
  }
  void expect(Stream& stream) override {
    MatrixCase::expect(stream);
    want_ = outputs();
  }
  void check(const Contract&, Problems& problems) override {
    if (outputs() != want_) problems.push_back("another set");
  }
  bool whole() const override { return MatrixCase::whole() && sets_->whole(); }

 private:
  static constexpr int kRoom = 8;
  int topk_;
  bool extend_;
  CaseVector<int32_t> sequence_{}, positions_{};
  std::unique_ptr<Matrix> sets_{}, sets_original_{};
  std::vector<std::byte> want_{};
};

struct AttendShape {
  int heads = 1, nope = 8, rope = 4, v = 8, rank = 16, topk = 8;
  Format format{};
  KvFormat kv = KvFormat::F32;
  Values values = Values::Normal;
  Numerics numerics{};
};

class AttendCase : public PagedCase {
 public:
  AttendCase(const AttendShape& shape, std::vector<int32_t> lengths, int rows_each, Rng& rng)
      : PagedCase(std::move(lengths), rows_each, rng),
        shape_(shape),
        kv_b_(shape.format, int64_t{shape.heads} * (shape.nope + shape.v), shape.rank, Values::Normal, rng) {
    geometry_ = {.latent = shape.kv, .kv_lora_rank = shape.rank, .rope_dim = shape.rope};
    std::vector<float> token(static_cast<size_t>(shape.rank + shape.rope));
    fill_cache(geometry_.latent_page_bytes(), [&](int32_t s, int32_t i) {
      fill_values(token.data(), shape.rank + shape.rope, Values::Normal, rng);
      write_latent_row(geometry_, token.data(), token.data() + shape.rank,
                       latent_row(view(), step_.paging(0, rows_), s, i));
    });
    add_input(int64_t{shape.heads} * (shape.nope + shape.rope), shape.values, rng);
    choose(rng);
    add_output(int64_t{shape.heads} * shape.v);
  }
  std::string describe() const override {
    return "mla_attend rows " + std::to_string(rows_) + " heads " + std::to_string(shape_.heads) + " rank " +
           std::to_string(shape_.rank) + " topk " + std::to_string(shape_.topk) + " " + shape_.format.to_string() +
           " " + to_string(shape_.kv) + " " + to_string(shape_.values) + (shape_.numerics.round_bf16 ? " bf16" : "");
  }
  Call call() const override {
    return {.op = Op::MlaAttend,
            .weight = shape_.format,
            .kv = shape_.kv,
            .m_lo = rows_,
            .m_hi = rows_,
            .n = kv_b_.get().n(),
            .k = shape_.rank,
            .heads = shape_.heads,
            .topk = shape_.topk,
            .rope = shape_.rope,
            .numerics = shape_.numerics};
  }
  bool prepare(const Registry& registry, Layout layout) override { return kv_b_.prepare(registry, layout); }
  bool whole() const override { return PagedCase::whole() && kv_b_.whole() && indices_->whole(); }

 protected:
  KvView view() { return {.geometry = geometry_, .latent = cache_.data()}; }
  // Ascending subsets that reach the row's own position; the last row of the first sequence sees nothing at all.
  void choose(Rng& rng) {
    indices_ = std::make_unique<Matrix>(rows_, shape_.topk);
    for (int64_t r = 0; r < rows_; ++r) {
      std::fill_n(indices_->ints(r), shape_.topk, -1);
      if (r == padding_row_) {
        std::fill_n(indices_->ints(r), shape_.topk, 1 << 29);  // anything
        continue;
      }
      if (rows_ > 4 && r == 2) continue;
      std::vector<int32_t> all;
      for (int32_t i = 0; i <= step_.positions[static_cast<size_t>(r)]; ++i) all.push_back(i);
      std::shuffle(all.begin(), all.end(), rng);
      all.resize(std::min(all.size(), static_cast<size_t>(shape_.topk)));
      std::sort(all.begin(), all.end());
      std::copy(all.begin(), all.end(), indices_->ints(r));
    }
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return MlaAttendArgs{
        .q = in(0).tensor(first, count),
        .kv_b = &kv_b_.get(),
        .heads = shape_.heads,
        .nope_dim = shape_.nope,
        .rope_dim = shape_.rope,
        .v_dim = shape_.v,
        .softmax_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape_.nope + shape_.rope))),
        .topk_indices = indices_->tensor(first, count, DType::I32),
        .paging = step_.paging(first, count),
        .kv = view(),
        .out = output(0, side).tensor(first, count),
        .numerics = shape_.numerics};
  }

 private:
  AttendShape shape_;
  TestWeight kv_b_;
  KvGeometry geometry_{};
  std::unique_ptr<Matrix> indices_{};
};

void add_attend_shapes(const Contract& contract, Cases& out, Rng& rng) {
  const int most = contract.limits.m_max > 0 ? static_cast<int>(std::max<int64_t>(1, contract.limits.m_max / 3)) : 40;
  std::vector<AttendShape> shapes = {{.heads = 2, .nope = 24, .rope = 16, .v = 32, .rank = 32, .topk = 16},
                                     {.heads = 4, .nope = 96, .rope = 32, .v = 128, .rank = 128, .topk = 64},
                                     {.heads = 3, .nope = 20, .rope = 8, .v = 12, .rank = 208, .topk = 19},
                                     {.heads = 2, .nope = 192, .rope = 64, .v = 256, .rank = 512, .topk = 100},
                                     {.heads = 17, .nope = 16, .rope = 8, .v = 16, .rank = 64, .topk = 5}};
  if (contract.limits.k_multiple >= 128) {  // kernels with a path for each number of heads
    for (const int heads : {16, 20, 64, 70})
      shapes.push_back({.heads = heads, .nope = 32, .rope = 64, .v = 24, .rank = 512, .topk = 200});
    shapes.push_back({.heads = 9, .nope = 40, .rope = 16, .v = 130, .rank = 128, .topk = 70});
    shapes.push_back({.heads = 5, .nope = 16, .rope = 8, .v = 16, .rank = 256, .topk = 64});
  }
  for (const Format& format : contract.weight) {
    for (const KvFormat kv : contract.kv) {
      if (kv == KvFormat::None) continue;
      for (AttendShape shape : shapes) {
        if (shape.heads > contract.limits.heads_max && contract.limits.heads_max > 0) continue;
        if (shape.rank % contract.limits.k_multiple != 0) continue;
        shape.format = format;
        shape.kv = kv;
        const bool main = &format == &contract.weight.front();
        out.push_back(std::make_unique<AttendCase>(shape, std::vector<int32_t>{3, 150}, 1, rng));
        const bool smallest = shape.rank == std::max<int64_t>(128, contract.limits.k_multiple);
        if (!main && (!smallest || shape.heads > 16)) continue;
        out.push_back(std::make_unique<AttendCase>(shape, std::vector<int32_t>{30, 1, 140}, std::min(most, 6), rng));
        if (shape.rank == 32)
          out.push_back(std::make_unique<AttendCase>(shape, std::vector<int32_t>{90, 65}, most, rng));
        for (const Values values : kAllValues) {
          shape.values = values;
          if (smallest && shape.heads < 16)
            out.push_back(std::make_unique<AttendCase>(shape, std::vector<int32_t>{80}, 1, rng));
        }
        shape.values = Values::Normal;
        for (const Numerics& numerics : edge_numerics(contract)) {
          shape.numerics = numerics;
          if (shape.rank == 32) out.push_back(std::make_unique<AttendCase>(shape, std::vector<int32_t>{80}, 1, rng));
        }
      }
    }
  }
}

}  // namespace

void add_attend_cases(const Contract& contract, Cases& out) {
  Rng rng(6);
  const int most = contract.limits.m_max > 0 ? static_cast<int>(std::max<int64_t>(1, contract.limits.m_max / 3)) : 20;
  if (contract.op == Op::IndexerLogits) {
    for (const IndexKeyFormat format : contract.index_key) {
      if (format == IndexKeyFormat::None) continue;
      for (const auto& [heads, dim] : {std::pair{1, 8}, std::pair{8, 32}, std::pair{32, 128}, std::pair{19, 40},
                                       std::pair{8, 128}, std::pair{19, 128}}) {
        if (dim % contract.limits.k_multiple != 0) continue;
        if (contract.arch > Isa::Avx512Bf16 && heads == 8 && dim == 128)  // several rounds of keys a block
          out.push_back(std::make_unique<IndexerLogitsCase>(
              IndexShape{.heads = heads, .head_dim = dim, .format = format}, std::vector<int32_t>{140000}, 1, rng));
        out.push_back(std::make_unique<IndexerLogitsCase>(IndexShape{.heads = heads, .head_dim = dim, .format = format},
                                                          std::vector<int32_t>{1, 131, 64}, 1, rng));
        out.push_back(std::make_unique<IndexerLogitsCase>(IndexShape{.heads = heads, .head_dim = dim, .format = format},
                                                          std::vector<int32_t>{70, 33}, most, rng));
        for (const Values values : kAllValues) {
          out.push_back(std::make_unique<IndexerLogitsCase>(
              IndexShape{.heads = heads, .head_dim = dim, .format = format, .values = values}, std::vector<int32_t>{66},
              1, rng));
        }
      }
    }
  }
  if (contract.op == Op::TopK) {
    for (const int topk : {1, 16, 64, 2048}) {
      for (const int distinct : {0, 1, 3, 400}) {
        out.push_back(std::make_unique<TopKCase>(std::vector<int32_t>{topk * 3 + 5}, topk, distinct, rng));
        out.push_back(
            std::make_unique<TopKCase>(std::vector<int32_t>{topk + 1, 1, topk, 2 * topk + 77, 0}, topk, distinct, rng));
      }
    }
    out.push_back(std::make_unique<TopKCase>(std::vector<int32_t>{20000, 19999}, 2048, 0, rng));
    for (const size_t rows : {20, 40, 140})
      out.push_back(std::make_unique<TopKCase>(std::vector<int32_t>(rows, 2300), 2048, 0, rng));
  }
  if (contract.op == Op::DraftSet) {
    for (const bool extend : {false, true})
      for (const int topk : {4, 64, 2048})
        for (const int kept : {0, topk / 2, topk + 3})
          out.push_back(std::make_unique<DraftSetCase>(topk, kept, extend, rng));
  }
  if (contract.op == Op::MlaAttend) add_attend_shapes(contract, out, rng);
}

}  // namespace plumb::testing
