#include "matrix_case.h"
#include "tensor/encode.h"

namespace plumb::testing {
namespace {

class EmbedCase : public MatrixCase {
 public:
  EmbedCase(const Format& format, int64_t rows, int64_t hidden, Numerics numerics, Rng& rng)
      : table_(format, 19, hidden, Values::Normal, rng), numerics_(numerics) {
    rows_ = rows;
    padding_row_ = rows >= 3 ? 1 : -1;
    for (int64_t t = 0; t < rows; ++t) ids_.push_back(t == padding_row_ ? -7 : static_cast<int32_t>(rng() % 19));
    ids_.back() = 18;
    add_output(hidden);
  }
  std::string describe() const override {
    return "embed rows " + std::to_string(rows_) + " " + table_.get().format().to_string();
  }
  Call call() const override {
    return {.op = Op::Embed,
            .weight = table_.get().format(),
            .m_lo = rows_,
            .m_hi = rows_,
            .n = table_.get().n(),
            .k = table_.get().k(),
            .numerics = numerics_};
  }
  bool prepare(const Registry& registry, Layout layout) override { return table_.prepare(registry, layout); }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return EmbedArgs{.ids = ids_.data() + first,
                     .table = &table_.get(),
                     .y = output(0, side).tensor(first, count),
                     .numerics = numerics_};
  }

 private:
  TestWeight table_;
  Numerics numerics_;
  CaseVector<int32_t> ids_{};
};

struct RowShape {
  int64_t rows = 1, n = 1;
  Values values = Values::Normal;
  Numerics numerics{};
  bool in_place = false;
};

std::string describe_row(const char* op, const RowShape& s) {
  return std::string(op) + " rows " + std::to_string(s.rows) + " n " + std::to_string(s.n) + " " + to_string(s.values) +
         (s.numerics.round_bf16 ? " bf16" : "") + (s.in_place ? " in place" : "");
}

class NormCase : public MatrixCase {
 public:
  NormCase(Op op, const RowShape& shape, Rng& rng)
      : op_(op), shape_(shape), weight_(static_cast<size_t>(shape.n) * 4, 4) {
    rows_ = shape.rows;
    padding_row_ = shape.rows >= 3 ? 1 : -1;
    fill_values(weight_.as<float>(), shape.n, Values::Normal, rng);
    if (op == Op::AddRmsNorm) {
      add_input(shape.n, shape.values, rng);
      add_in_out(shape.n, shape.values, rng);
      add_output(shape.n);
    } else if (shape.in_place) {
      add_in_out(shape.n, shape.values, rng);
    } else {
      add_input(shape.n, shape.values, rng);
      add_output(shape.n);
    }
  }
  std::string describe() const override { return describe_row(to_string(op_).c_str(), shape_); }
  Call call() const override {
    return {.op = op_, .m_lo = rows_, .m_hi = rows_, .k = shape_.n, .numerics = shape_.numerics};
  }
  bool whole() const override { return MatrixCase::whole() && weight_.fences_whole(); }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    if (op_ == Op::AddRmsNorm)
      return AddRmsNormArgs{.residual = output(0, side).tensor(first, count),
                            .delta = in(0).tensor(first, count),
                            .weight = weight_.as<float>(),
                            .eps = 1e-5,
                            .y = output(1, side).tensor(first, count),
                            .numerics = shape_.numerics};
    return RmsNormArgs{.x = (shape_.in_place ? output(0, side) : in(0)).tensor(first, count),
                       .weight = weight_.as<float>(),
                       .eps = 1e-6,
                       .y = output(0, side).tensor(first, count),
                       .numerics = shape_.numerics};
  }

 private:
  Op op_;
  RowShape shape_;
  Buffer weight_;
};

struct RopeShape {
  int64_t rows = 1;
  int heads = 1, head_dim = 8, offset = 0, rope_dim = 8;
  bool interleaved = true;
  Values values = Values::Normal;
  Numerics numerics{};
};

class RopeCase : public MatrixCase {
 public:
  RopeCase(const RopeShape& shape, Rng& rng) : shape_(shape) {
    rows_ = shape.rows;
    padding_row_ = shape.rows >= 3 ? 1 : -1;
    const int half = shape.rope_dim / 2;
    for (int64_t i = 0; i < rows_ * half; ++i) {
      const double angle = static_cast<double>(rng() % 100000) * 0.01;
      cos_.push_back(static_cast<float>(std::cos(angle)));
      sin_.push_back(static_cast<float>(std::sin(angle)));
    }
    add_in_out(int64_t{shape.heads} * shape.head_dim, shape.values, rng);
  }
  std::string describe() const override {
    return "rope rows " + std::to_string(rows_) + " heads " + std::to_string(shape_.heads) + " dim " +
           std::to_string(shape_.rope_dim) + (shape_.interleaved ? " interleaved " : " half-split ") +
           to_string(shape_.values);
  }
  Call call() const override {
    return {.op = Op::Rope, .m_lo = rows_, .m_hi = rows_, .heads = shape_.heads, .numerics = shape_.numerics};
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    const int half = shape_.rope_dim / 2;
    return RopeArgs{.x = output(0, side).tensor(first, count),
                    .heads = shape_.heads,
                    .head_dim = shape_.head_dim,
                    .offset = shape_.offset,
                    .rope_dim = shape_.rope_dim,
                    .interleaved = shape_.interleaved,
                    .cos = cos_.data() + first * half,
                    .sin = sin_.data() + first * half,
                    .numerics = shape_.numerics};
  }

 private:
  RopeShape shape_;
  CaseVector<float> cos_{}, sin_{};
};

class GatherCase : public MatrixCase {
 public:
  GatherCase(int64_t rows, int64_t n, Rng& rng) : n_(n), x_(std::make_unique<Matrix>(23, n)) {
    rows_ = rows;
    x_->fill(Values::Normal, rng);
    for (int64_t i = 0; i < rows; ++i) pick_.push_back(static_cast<int32_t>(rng() % 23));
    pick_.back() = 22;
    add_output(n);
  }
  std::string describe() const override {
    return "gather_rows rows " + std::to_string(rows_) + " n " + std::to_string(n_);
  }
  Call call() const override { return {.op = Op::GatherRows, .m_lo = rows_, .m_hi = rows_, .k = n_}; }
  bool whole() const override { return MatrixCase::whole() && x_->whole(); }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return GatherRowsArgs{
        .x = x_->tensor(0, 23), .rows = pick_.data() + first, .y = output(0, side).tensor(first, count)};
  }

 private:
  int64_t n_;
  std::unique_ptr<Matrix> x_;
  CaseVector<int32_t> pick_{};
};

class FiniteCase : public MatrixCase {
 public:
  FiniteCase(int64_t rows, int64_t n, Rng& rng) : n_(n) {
    rows_ = rows;
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const float bad[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf};
    auto x = std::make_unique<Matrix>(rows, n);
    x->fill(Values::Large, rng);
    for (int64_t r = 1; r < rows; r += 2) x->row(r)[(r * 37) % n] = bad[r / 2 % 3];
    add_input(std::move(x));
    add_output(1);
  }
  std::string describe() const override {
    return "finite_rows rows " + std::to_string(rows_) + " n " + std::to_string(n_);
  }
  Call call() const override { return {.op = Op::FiniteRows, .m_lo = rows_, .m_hi = rows_, .k = n_}; }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return FiniteRowsArgs{.x = in(0).tensor(first, count), .finite = output(0, side).tensor(first, count, DType::I32)};
  }
  void check(const Contract&, Problems& problems) override {
    for (int64_t r = 0; r < rows_; ++r)
      if (*output(0).ints(r) != (r % 2 == 1 ? 0 : 1)) problems.push_back("finite: wrong in row " + std::to_string(r));
  }

 private:
  int64_t n_;
};

void add_norms(const Contract& contract, Cases& out, Rng& rng) {
  const std::vector<int64_t> sizes = edge_sizes({1, 17, 256, 771}, contract.limits.k_multiple, contract.limits.k_max);
  for (const int64_t rows : edge_rows(contract, {1, 3, 20})) {
    for (const int64_t n : sizes) {
      for (const Numerics& numerics : edge_numerics(contract)) {
        out.push_back(std::make_unique<NormCase>(
            contract.op,
            RowShape{.rows = rows, .n = n, .numerics = numerics, .in_place = contract.op == Op::RmsNorm && rows == 3},
            rng));
      }
    }
  }
  for (const Values values : kAllValues)
    out.push_back(
        std::make_unique<NormCase>(contract.op, RowShape{.rows = 2, .n = sizes.back(), .values = values}, rng));
}

}  // namespace

void add_row_cases(const Contract& contract, Cases& out) {
  Rng rng(4);
  if (contract.op == Op::Embed) {
    for (const Format& format : contract.weight) {
      for (const int64_t rows : edge_rows(contract, {1, 4, 33})) {
        for (const Numerics& numerics : edge_numerics(contract)) {
          for (const int64_t hidden : edge_sizes({16, 272}, contract.limits.k_multiple, contract.limits.k_max))
            out.push_back(std::make_unique<EmbedCase>(format, rows, hidden, numerics, rng));
        }
      }
    }
  }
  if (contract.op == Op::RmsNorm || contract.op == Op::AddRmsNorm) add_norms(contract, out, rng);
  if (contract.op == Op::Rope) {
    for (const int64_t rows : edge_rows(contract, {1, 3, 17})) {
      for (const bool interleaved : {true, false}) {
        for (const Numerics& numerics : edge_numerics(contract)) {
          out.push_back(std::make_unique<RopeCase>(RopeShape{.rows = rows,
                                                             .heads = 3,
                                                             .head_dim = 40,
                                                             .offset = 24,
                                                             .rope_dim = 16,
                                                             .interleaved = interleaved,
                                                             .numerics = numerics},
                                                   rng));
          out.push_back(std::make_unique<RopeCase>(RopeShape{.rows = rows,
                                                             .heads = 2,
                                                             .head_dim = 256,
                                                             .offset = 192,
                                                             .rope_dim = 64,
                                                             .interleaved = interleaved,
                                                             .numerics = numerics},
                                                   rng));
          out.push_back(std::make_unique<RopeCase>(
              RopeShape{.rows = rows, .head_dim = 10, .rope_dim = 6, .interleaved = interleaved, .numerics = numerics},
              rng));
        }
        for (const Values values : kAllValues)
          out.push_back(
              std::make_unique<RopeCase>(RopeShape{.rows = rows, .interleaved = interleaved, .values = values}, rng));
      }
    }
  }
  if (contract.op == Op::FiniteRows) {
    for (const int64_t rows : edge_rows(contract, {1, 7, 40}))
      for (const int64_t n : {1, 37, 6144}) out.push_back(std::make_unique<FiniteCase>(rows, n, rng));
  }
  if (contract.op == Op::GatherRows) {
    for (const int64_t rows : edge_rows(contract, {1, 5, 40}))
      out.push_back(std::make_unique<GatherCase>(rows, 37, rng));
  }
}

}  // namespace plumb::testing
