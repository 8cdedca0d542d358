#include "matrix_case.h"

namespace plumb::testing {
namespace {

struct LinearShape {
  int64_t rows = 1, n = 1, k = 1;
  Format format{};
  Values values = Values::Normal;
  Numerics numerics{};
  bool bias = false;
};

std::string describe_shape(const char* op, const LinearShape& s) {
  return std::string(op) + " rows " + std::to_string(s.rows) + " n " + std::to_string(s.n) + " k " +
         std::to_string(s.k) + " " + s.format.to_string() + " " + to_string(s.values) +
         (s.numerics.round_bf16 ? " bf16" : "") + (s.bias ? " bias" : "");
}

class LinearCase : public MatrixCase {
 public:
  LinearCase(const LinearShape& shape, Rng& rng)
      : shape_(shape),
        weight_(shape.format, shape.n, shape.k, shape.values == Values::Outlier ? shape.values : Values::Normal, rng) {
    rows_ = shape.rows;
    padding_row_ = shape.rows >= 3 ? shape.rows / 2 : -1;
    if (shape.bias) weight_.add_bias(rng);
    add_input(shape.k, shape.values, rng);
    add_output(shape.n);
  }
  std::string describe() const override { return describe_shape("linear", shape_); }
  Call call() const override {
    return {.op = Op::Linear,
            .weight = shape_.format,
            .m_lo = rows_,
            .m_hi = rows_,
            .n = shape_.n,
            .k = shape_.k,
            .numerics = shape_.numerics};
  }
  bool prepare(const Registry& registry, Layout layout) override { return weight_.prepare(registry, layout); }
  bool whole() const override { return MatrixCase::whole() && weight_.whole(); }

 protected:
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return LinearArgs{.w = &weight_.get(),
                      .x = in(0).tensor(first, count),
                      .y = output(0, side).tensor(first, count),
                      .numerics = shape_.numerics};
  }

 private:
  LinearShape shape_;
  TestWeight weight_;
};

class MlpCase : public MatrixCase {
 public:
  // n is the width in the middle, k the hidden size.
  MlpCase(const LinearShape& shape, Rng& rng)
      : shape_(shape),
        gate_(shape.format, shape.n, shape.k, Values::Normal, rng),
        up_(shape.format, shape.n, shape.k, Values::Normal, rng),
        down_(shape.format, shape.k, shape.n, Values::Normal, rng) {
    up_.mutable_get().source.global_scale *= shape.format.global_scale ? 3.0f : 1.0f;  // siblings need not share it
    rows_ = shape.rows;
    padding_row_ = shape.rows >= 3 ? shape.rows / 2 : -1;
    add_input(shape.k, shape.values, rng);
    add_output(shape.k);
  }
  std::string describe() const override { return describe_shape("mlp", shape_); }
  Call call() const override {
    return {.op = Op::Mlp,
            .weight = shape_.format,
            .m_lo = rows_,
            .m_hi = rows_,
            .n = shape_.n,
            .k = shape_.k,
            .numerics = shape_.numerics};
  }
  bool prepare(const Registry& registry, Layout layout) override {
    return gate_.prepare(registry, layout) && up_.prepare(registry, layout) && down_.prepare(registry, layout);
  }
  bool whole() const override { return MatrixCase::whole() && gate_.whole() && up_.whole() && down_.whole(); }

 protected:
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return MlpArgs{.gate = &gate_.get(),
                   .up = &up_.get(),
                   .down = &down_.get(),
                   .x = in(0).tensor(first, count),
                   .y = output(0, side).tensor(first, count),
                   .numerics = shape_.numerics};
  }

 private:
  LinearShape shape_;
  TestWeight gate_, up_, down_;
};

// Sizes worth trying: the smallest, ones that leave a partial strip, block and scale block, and a few whole ones.
std::vector<LinearShape> shapes_of(const Contract& contract) {
  const Limits& limits = contract.limits;
  std::vector<LinearShape> out;
  for (const Format& format : contract.weight) {
    const int64_t k_step = format.element == DType::F4E2M1 ? 16 : 1;
    const std::vector<int64_t> ks = edge_sizes({1, 48, 144, 400}, std::max(limits.k_multiple, k_step), limits.k_max);
    const std::vector<int64_t> ns = edge_sizes({1, 33, 192}, limits.n_multiple, limits.n_max);
    for (const int64_t rows : edge_rows(contract, {1, 2, 5, 37})) {
      for (const int64_t n : ns) {
        for (const int64_t k : ks) out.push_back({.rows = rows, .n = n, .k = k, .format = format, .bias = rows == 2});
      }
    }
    for (const Values values : kAllValues) {
      out.push_back({.rows = edge_rows(contract, {3}).back(),
                     .n = ns.back(),
                     .k = ks.back(),
                     .format = format,
                     .values = values});
    }
    if (contract.arch > Isa::Avx512Bf16 && limits.k_multiple > 1)  // many steps, and more rows than a block takes
      out.push_back(
          {.rows = 70, .n = 320, .k = 2176 / limits.k_multiple * limits.k_multiple, .format = format, .bias = true});
    for (const Numerics& numerics : edge_numerics(contract)) {
      out.push_back({.rows = 1, .n = ns.back(), .k = ks.back(), .format = format, .numerics = numerics});
    }
  }
  return out;
}

}  // namespace

void add_linear_cases(const Contract& contract, Cases& out) {
  Rng rng(1);
  if (contract.op == Op::Linear) {
    for (const LinearShape& shape : shapes_of(contract)) out.push_back(std::make_unique<LinearCase>(shape, rng));
  }
  if (contract.op != Op::Mlp) return;
  for (LinearShape shape : shapes_of(contract)) {
    // Both widths are a k here.
    shape.n = edge_sizes({shape.n},
                         std::max({contract.limits.n_multiple, contract.limits.k_multiple,
                                   int64_t{shape.format.element == DType::F4E2M1 ? 16 : 1}}),
                         0)[0];
    shape.k = edge_sizes({shape.k}, std::max(contract.limits.n_multiple, contract.limits.k_multiple), 0)[0];
    shape.bias = false;
    out.push_back(std::make_unique<MlpCase>(shape, rng));
  }
}

}  // namespace plumb::testing
