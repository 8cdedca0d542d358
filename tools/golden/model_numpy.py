"""The forward pass of glm_moe_dsa and deepseek_v32 in numpy float64, written from the specification alone.

An independent witness: whole sequences at once, expanded attention, dense masks. Nothing here is fast.
"""
import math

import numpy as np

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def e4m3_table():
    values = np.empty(256)
    for code in range(256):
        sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
        values[code] = sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))
    values[0x7F] = values[0xFF] = np.nan
    return values


E4M3 = e4m3_table()
_POSITIVE = E4M3[:0x7F]


def round_e4m3(x):
    """Nearest, ties to the even code, saturating."""
    a = np.minimum(np.abs(x), 448.0)
    above = np.clip(np.searchsorted(_POSITIVE, a), 1, 126)
    low, high = _POSITIVE[above - 1], _POSITIVE[above]
    up = (a - low > high - a) | ((a - low == high - a) & (above % 2 == 0))
    return np.sign(x) * np.where(up, high, low)


class Weights:
    """Decodes whichever encoding a tensor has."""

    def __init__(self, tensors):
        self.tensors = tensors

    def has(self, name):
        return name in self.tensors

    def vector(self, name):
        kind, array = self.tensors[name]
        return bf16(array) if kind == "BF16" else array.astype(np.float64)

    def matrix(self, module):
        kind, array = self.tensors[module + ".weight"]
        if kind == "BF16":
            return bf16(array)
        if kind == "F32":
            return array.astype(np.float64)
        if kind == "F8_E4M3":
            scale_kind, scale = self.tensors[module + ".weight_scale_inv"]
            scale = 2.0 ** (scale.astype(np.float64) - 127) if scale_kind == "F8_E8M0" else scale.astype(np.float64)
            n, k = array.shape
            return E4M3[array] * np.kron(scale, np.ones((128, 128)))[:n, :k]
        codes = np.stack([array & 15, array >> 4], axis=-1).reshape(array.shape[0], -1)
        scale = E4M3[self.tensors[module + ".weight_scale"][1]].repeat(16, axis=1)
        g = float(self.tensors[module + ".weight_scale_2"][1].reshape(()))
        return E2M1[codes] * scale * g


def get_mscale(scale, m):
    return 0.1 * m * math.log(scale) + 1 if scale > 1 else 1.0


class Rope:
    def __init__(self, config):
        self.dim = config["qk_rope_head_dim"]
        p = config.get("rope_parameters") or dict(config.get("rope_scaling") or {}, rope_theta=config["rope_theta"])
        theta = float(p["rope_theta"])
        # Each power and reciprocal rounded to float32: angles at large positions depend on it.
        power = np.float32(theta) ** (np.arange(0, self.dim, 2).astype(np.float32) / np.float32(self.dim))
        self.inv_freq = (np.float32(1) / power.astype(np.float32)).astype(np.float32)
        self.softmax_factor = 1.0
        if p.get("rope_type", p.get("type", "default")) == "yarn":
            raise NotImplementedError("the golden random/rope_v5_yarn covers it")

    def tables(self, positions):
        angles = positions.astype(np.float32)[:, None] * self.inv_freq[None, :]
        angles = angles.astype(np.float64)
        return (np.cos(angles).astype(np.float32).astype(np.float64),
                np.sin(angles).astype(np.float32).astype(np.float64))


def rotate(x, cos, sin, interleaved):
    """x [T, heads, dim] whole rotated."""
    out = np.empty_like(x)
    cos, sin = cos[:, None, :], sin[:, None, :]
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    first, second = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        out[..., 0::2], out[..., 1::2] = first, second
    else:
        out[..., :half], out[..., half:] = first, second
    return out


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


class Model:
    def __init__(self, config, tensors, latent_eps=1e-6, fp8_latent=False, fp8_index=False):
        self.c = config
        self.w = Weights(tensors)
        self.rope = Rope(config)
        self.eps = config.get("rms_norm_eps", 1e-5)
        self.latent_eps = latent_eps
        self.fp8_latent = fp8_latent
        self.fp8_index = fp8_index
        default = config["model_type"] == "glm_moe_dsa"
        self.index_interleaved = config.get("indexer_rope_interleave", default)
        self.cache = {}

    def linear(self, module, x):
        if module not in self.cache:
            self.cache[module] = self.w.matrix(module)
        y = x @ self.cache[module].T
        bias = module + ".bias"
        return y + self.w.vector(bias) if self.w.has(bias) else y

    def indexer(self, p, x, q_latent, cos, sin):
        c, rope = self.c, self.c["qk_rope_head_dim"]
        heads, dim, n = c["index_n_heads"], c["index_head_dim"], x.shape[0]
        q = self.linear(p + "wq_b", q_latent).reshape(n, heads, dim)
        k = self.linear(p + "wk", x)
        mean = k.mean(-1, keepdims=True)
        k = (k - mean) / np.sqrt(((k - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
        k = (k * self.w.vector(p + "k_norm.weight") + self.w.vector(p + "k_norm.bias"))[:, None, :]
        q = np.concatenate([rotate(q[..., :rope], cos, sin, self.index_interleaved), q[..., rope:]], -1)
        k = np.concatenate([rotate(k[..., :rope], cos, sin, self.index_interleaved), k[..., rope:]], -1)
        if self.fp8_index:
            q, k = fp8_rows(q, q.shape[-1]), fp8_rows(k, k.shape[-1])
        w = self.linear(p + "weights_proj", x) * heads**-0.5
        scores = np.zeros((n, n))
        for h in range(heads):
            scores += w[:, h:h + 1] * np.maximum(q[:, h] @ k[:, 0].T * dim**-0.5, 0)
        mask = np.zeros((n, n), bool)
        for t in range(n):
            # float32 scores, as everyone compares them; descending, ties to the lower position
            order = np.argsort(-scores[t, :t + 1].astype(np.float32), kind="stable")
            mask[t, order[:c["index_topk"]]] = True
        return mask

    def attention(self, layer, x, positions, mask):
        c, p = self.c, f"model.layers.{layer}.self_attn."
        heads, nope, rope, v_dim = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                                    c["v_head_dim"])
        rank, n = c["kv_lora_rank"], x.shape[0]
        cos, sin = self.rope.tables(positions)
        q_latent = rms_norm(self.linear(p + "q_a_proj", x), self.w.vector(p + "q_a_layernorm.weight"), self.latent_eps)
        q = self.linear(p + "q_b_proj", q_latent).reshape(n, heads, nope + rope)
        q_pe = rotate(q[..., nope:], cos, sin, True)
        kv_a = self.linear(p + "kv_a_proj_with_mqa", x)
        latent = rms_norm(kv_a[:, :rank], self.w.vector(p + "kv_a_layernorm.weight"), self.latent_eps)
        k_pe = rotate(kv_a[:, None, rank:], cos, sin, True)[:, 0]
        if self.fp8_latent:
            latent = fp8_rows(latent, 128)
            k_pe = round_bf16(k_pe)
        if self.owns_indexer(layer):
            mask = self.indexer(p + "indexer.", x, q_latent, cos, sin)
        kv = self.linear(p + "kv_b_proj", latent).reshape(n, heads, nope + v_dim)
        out = np.empty((n, heads, v_dim))
        for h in range(heads):
            s = (q[:, h, :nope] @ kv[:, h, :nope].T + q_pe[:, h] @ k_pe.T) * (nope + rope) ** -0.5
            s = np.where(mask, s, -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            out[:, h] = e / e.sum(-1, keepdims=True) @ kv[:, h, nope:]
        return self.linear(p + "o_proj", out.reshape(n, -1)), mask

    def owns_indexer(self, layer):
        types = self.c.get("indexer_types")
        return types is None or layer >= len(types) or types[layer] == "full"

    def mlp(self, p, x):
        return self.linear(p + "down_proj", silu(self.linear(p + "gate_proj", x)) * self.linear(p + "up_proj", x))

    def moe(self, p, x):
        c = self.c
        experts, k = c["n_routed_experts"], c["num_experts_per_tok"]
        s = 1 / (1 + np.exp(-self.linear(p + "gate", x)))
        choice = s.astype(np.float32) + self.tensor_f32(p + "gate.e_score_correction_bias")
        groups, keep = c.get("n_group", 1), c.get("topk_group", 1)
        out = self.mlp(p + "shared_experts.", x) if c.get("n_shared_experts") else np.zeros_like(x)
        combine = np.zeros((x.shape[0], experts))
        for t in range(x.shape[0]):
            scores = choice[t].copy()
            if groups > 1:
                by_group = scores.reshape(groups, -1)
                rank = -np.sort(by_group, axis=1)[:, -2:].sum(1)
                for g in np.argsort(rank, kind="stable")[keep:]:
                    by_group[g] = -np.inf
            chosen = np.argsort(-scores, kind="stable")[:k]
            weights = s[t, chosen]
            if c.get("norm_topk_prob", True):
                weights = weights / (weights.sum() + 1e-20)
            combine[t, chosen] = weights * c.get("routed_scaling_factor", 2.5)
        for e in range(experts):
            rows = np.flatnonzero(combine[:, e])
            if rows.size:
                out[rows] += combine[rows, e][:, None] * self.mlp(f"{p}experts.{e}.", x[rows])
        return out

    def tensor_f32(self, name):
        return self.w.tensors[name][1].astype(np.float32)

    def forward(self, ids, first_position=0):
        """Logits [T, vocab] of a whole sequence."""
        c, h = self.c, self.w.matrix("model.embed_tokens")[np.asarray(ids)]
        positions = first_position + np.arange(len(ids))
        mask = None
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = rms_norm(h, self.w.vector(p + "input_layernorm.weight"), self.eps)
            attention, mask = self.attention(layer, x, positions, mask)
            h = h + attention
            x = rms_norm(h, self.w.vector(p + "post_attention_layernorm.weight"), self.eps)
            h = h + (self.moe(p + "mlp.", x) if self.is_sparse(layer) else self.mlp(p + "mlp.", x))
        x = rms_norm(h, self.w.vector("model.norm.weight"), self.eps)
        return self.linear("model.embed_tokens" if c.get("tie_word_embeddings") else "lm_head", x)

    def is_sparse(self, layer):
        types = self.c.get("mlp_layer_types")
        return types[layer] == "sparse" if types else layer >= self.c.get("first_k_dense_replace", 3)


def round_bf16(x):
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def fp8_rows(x, block):
    """E4M3 with one float32 scale per started `block` of the last dimension: amax clamped to >= 1e-4, / 448."""
    out = np.empty_like(x)
    for begin in range(0, x.shape[-1], block):
        part = x[..., begin:begin + block].astype(np.float32)
        amax = np.maximum(np.abs(part).max(-1, keepdims=True), np.float32(1e-4))
        scale = (amax / np.float32(448)).astype(np.float32)
        codes = round_e4m3((part / scale).astype(np.float32).astype(np.float64))
        out[..., begin:begin + block] = (codes * scale).astype(np.float32)
    return out
