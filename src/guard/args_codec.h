// The fields of an op's arguments besides its tensors and weights, named: what a capture writes and reads back.
#pragma once

#include "guard/op_args.h"

namespace plumb::args_codec {

// A codec C has
//   scalar(name, T&)                      numbers, bools and enums
//   array(name, const T*&, int64_t count) of float or int32_t, null allowed
//   cache(name, std::byte*&, int64_t bytes)
template <class C>
void numerics(Numerics& n, C& c) {
  c.scalar("round_bf16", n.round_bf16);
  c.scalar("norm_two_roundings", n.norm_two_roundings);
  c.scalar("rope_bf16", n.rope_bf16);
  c.scalar("index_hadamard", n.index_hadamard);
}

// As a record has it: pages numbered through.
template <class C>
void paged(Paging& p, KvView& kv, C& c) {
  c.scalar("paging.rows", p.rows);
  c.scalar("paging.sequences", p.sequences);
  c.scalar("paging.stride", p.page_table_stride);
  c.scalar("paging.page_tokens", p.page_tokens);
  const int64_t pages = int64_t{p.sequences} * p.page_table_stride;
  c.array("paging.positions", p.positions, p.rows);
  c.array("paging.sequence", p.sequence, p.rows);
  c.array("paging.page_table", p.page_table, pages);
  KvGeometry& g = kv.geometry;
  c.scalar("kv.latent", g.latent);
  c.scalar("kv.index_key", g.index_key);
  c.scalar("kv.kv_lora_rank", g.kv_lora_rank);
  c.scalar("kv.rope_dim", g.rope_dim);
  c.scalar("kv.index_head_dim", g.index_head_dim);
  c.scalar("kv.page_tokens", g.page_tokens);
  c.cache("cache.latent", kv.latent, pages * g.latent_page_bytes());
  c.cache("cache.index_keys", kv.index_keys, pages * g.index_page_bytes());
}

template <class Args, class C>
void angles(Args& a, int64_t rows, int rope_dim, C& c) {
  c.array("cos", a.cos, rows * (rope_dim / 2));
  c.array("sin", a.sin, rows * (rope_dim / 2));
}

template <class C>
void fields(EmbedArgs& a, C& c) {
  c.array("ids", a.ids, a.y.dim(0));
  numerics(a.numerics, c);
}
template <class C>
void fields(RmsNormArgs& a, C& c) {
  c.array("weight", a.weight, a.x.dim(1));
  c.scalar("eps", a.eps);
  numerics(a.numerics, c);
}
template <class C>
void fields(AddRmsNormArgs& a, C& c) {
  c.array("weight", a.weight, a.residual.dim(1));
  c.scalar("eps", a.eps);
  numerics(a.numerics, c);
}
template <class C>
void fields(LinearArgs& a, C& c) {
  numerics(a.numerics, c);
}
template <class C>
void fields(RopeArgs& a, C& c) {
  c.scalar("heads", a.heads);
  c.scalar("head_dim", a.head_dim);
  c.scalar("offset", a.offset);
  c.scalar("rope_dim", a.rope_dim);
  c.scalar("interleaved", a.interleaved);
  angles(a, a.x.dim(0), a.rope_dim, c);
  numerics(a.numerics, c);
}
template <class C>
void fields(KvWriteArgs& a, C& c) {
  paged(a.paging, a.kv, c);
  c.array("weight", a.weight, a.kv.geometry.kv_lora_rank);
  c.scalar("eps", a.eps);
  angles(a, a.paging.rows, a.kv.geometry.rope_dim, c);
  numerics(a.numerics, c);
}
template <class C>
void fields(IndexQueryArgs& a, C& c) {
  c.scalar("heads", a.heads);
  c.scalar("head_dim", a.head_dim);
  c.scalar("rope_dim", a.rope_dim);
  c.scalar("interleaved", a.interleaved);
  c.scalar("index_key", a.index_key);
  angles(a, a.q.dim(0), a.rope_dim, c);
  numerics(a.numerics, c);
}
template <class C>
void fields(IndexKeyWriteArgs& a, C& c) {
  paged(a.paging, a.kv, c);
  c.array("weight", a.weight, a.kv.geometry.index_head_dim);
  c.array("bias", a.bias, a.kv.geometry.index_head_dim);
  c.scalar("eps", a.eps);
  c.scalar("rope_dim", a.rope_dim);
  c.scalar("interleaved", a.interleaved);
  angles(a, a.paging.rows, a.rope_dim, c);
  numerics(a.numerics, c);
}
template <class C>
void fields(IndexerLogitsArgs& a, C& c) {
  paged(a.paging, a.kv, c);
  c.scalar("heads", a.heads);
  c.scalar("head_dim", a.head_dim);
  c.scalar("weight_scale", a.weight_scale);
  c.scalar("softmax_scale", a.softmax_scale);
}
template <class C>
void fields(TopKArgs& a, C& c) {
  c.array("positions", a.positions, a.indices.dim(0));
  c.scalar("topk", a.topk);
}
template <class C>
void fields(MlaAttendArgs& a, C& c) {
  paged(a.paging, a.kv, c);
  c.scalar("heads", a.heads);
  c.scalar("nope_dim", a.nope_dim);
  c.scalar("rope_dim", a.rope_dim);
  c.scalar("v_dim", a.v_dim);
  c.scalar("softmax_scale", a.softmax_scale);
  numerics(a.numerics, c);
}
template <class C>
void fields(RouterArgs& a, C& c) {
  c.array("bias", a.bias, a.logits.dim(1));
  c.array("sequence", a.sequence, a.x.dim(0));
  c.scalar("n_group", a.n_group);
  c.scalar("topk_group", a.topk_group);
  c.scalar("norm_topk_prob", a.norm_topk_prob);
  c.scalar("routed_scaling_factor", a.routed_scaling_factor);
}
template <class C>
void fields(MlpArgs& a, C& c) {
  numerics(a.numerics, c);
}
template <class C>
void fields(MoeArgs& a, C& c) {
  c.scalar("first_expert", a.first_expert);
  numerics(a.numerics, c);
}
template <class C>
void fields(GatherRowsArgs& a, C& c) {
  c.array("rows", a.rows, a.y.dim(0));
  c.source("source", a.x, a.y);
}
template <class C>
void fields(FiniteRowsArgs&, C&) {}
template <class C>
void fields(DraftSetArgs&, C&) {}  // these are never captured
template <class C>
void fields(SampleArgs&, C&) {}
template <class C>
void fields(AllReduceArgs&, C&) {}
template <class C>
void fields(GatherColumnsArgs&, C&) {}

}  // namespace plumb::args_codec
