#include "guard/fault_rows.h"

#include "base/check.h"

namespace plumb {
namespace {

// One key, and with FP8 its scale at the end of the page.
void index_key_pieces(const IndexKeyWriteArgs& a, const Paging& pass, int32_t step_row, std::vector<Piece>& out) {
  const KvGeometry& g = a.kv.geometry;
  const int32_t position = pass.positions[step_row];
  std::byte* page = index_page(a.kv, pass, pass.sequence[step_row], position);
  const auto slot = static_cast<size_t>(position % pass.page_tokens);
  const size_t width = g.index_key == IndexKeyFormat::F32 ? 4 : g.index_key == IndexKeyFormat::Bf16 ? 2 : 1;
  const auto dim = static_cast<size_t>(g.index_head_dim);
  const DType dtype = width == 4 ? DType::F32 : width == 2 ? DType::BF16 : DType::U8;
  out.push_back({.data = page + slot * dim * width, .bytes = dim * width, .dtype = dtype});
  if (g.index_key == IndexKeyFormat::Fp8)
    out.push_back({.data = page + static_cast<size_t>(g.page_tokens) * dim + slot * 4, .bytes = 4});
}

void latent_pieces(const KvWriteArgs& a, const Paging& pass, int32_t step_row, std::vector<Piece>& out) {
  const KvGeometry& g = a.kv.geometry;
  const DType dtype = g.latent == KvFormat::F32 ? DType::F32 : g.latent == KvFormat::Bf16 ? DType::BF16 : DType::U8;
  out.push_back({.data = latent_row(a.kv, pass, pass.sequence[step_row], pass.positions[step_row]),
                 .bytes = static_cast<size_t>(g.latent_row_bytes()),
                 .dtype = dtype});
}

}  // namespace

void DeviceBytes::get(void* to, const void* from, size_t bytes) {
  executor_.memory().download(to, from, bytes, executor_.stream());
}

void DeviceBytes::put(void* to, const void* from, size_t bytes) {
  executor_.memory().upload(to, from, bytes, executor_.stream());
  executor_.memory().synchronise(executor_.stream());
}

std::byte* DeviceBytes::copy(const void* from, size_t bytes) {
  Result<std::shared_ptr<std::byte>> block = executor_.memory().allocate(bytes, "a planted fault");
  PLUMB_CHECK(static_cast<bool>(block), "no memory for a planted fault");
  scratch_.push_back(*block);
  put(scratch_.back().get(), from, bytes);
  return scratch_.back().get();
}

std::vector<std::vector<Piece>> written_rows(AnyArgs& args, const OpCall& call, const Paging& pass) {
  std::vector<std::vector<Piece>> rows(static_cast<size_t>(call.rows));
  for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
    if (role == Role::In) return;
    const int64_t width = tensor.dim(1) * bits(tensor.dtype) / 8, step = tensor.ld * bits(tensor.dtype) / 8;
    for (int64_t r = 0; r < call.rows; ++r)
      rows[static_cast<size_t>(r)].push_back({.data = static_cast<std::byte*>(tensor.data) + r * step,
                                              .bytes = static_cast<size_t>(width),
                                              .dtype = tensor.dtype,
                                              .input = role == Role::InOut});
  });
  for (int64_t r = 0; r < call.rows; ++r) {
    const int32_t step_row = call.origin.row(r);
    std::vector<Piece>& row = rows[static_cast<size_t>(r)];
    if (const auto* a = std::get_if<KvWriteArgs>(&args); a != nullptr && pass.sequence[step_row] >= 0)
      latent_pieces(*a, pass, step_row, row);
    if (const auto* a = std::get_if<IndexKeyWriteArgs>(&args); a != nullptr && pass.sequence[step_row] >= 0)
      index_key_pieces(*a, pass, step_row, row);
  }
  return rows;
}

RowBytes read_row(const std::vector<Piece>& row, DeviceBytes& memory) {
  RowBytes out;
  for (const Piece& piece : row) memory.get(out.emplace_back(piece.bytes).data(), piece.data, piece.bytes);
  return out;
}

void write_row(const std::vector<Piece>& row, const RowBytes& bytes, DeviceBytes& memory) {
  for (size_t i = 0; i < row.size(); ++i) memory.put(row[i].data, bytes[i].data(), row[i].bytes);
}

}  // namespace plumb
