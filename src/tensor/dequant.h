// The meaning of every weight format: exact decoding of one row of an encoded matrix to float32 (formats.md sections
// 2.1 and 3). Judge of all conversions and fast kernels; not fast itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/format.h"

namespace plumb {

// A matrix [n, k] as a checkpoint has it: row-major data, row-major scales [scale_rows, scale_cols]. Owns nothing.
// The pointers need no alignment (safetensors promises none).
struct EncodedMatrix {
  Format format{};
  int64_t n = 0;
  int64_t k = 0;
  const void* data = nullptr;
  const void* scale = nullptr;  // F32: float; UE8M0, UE4M3: one byte a scale; None: unused
  float global_scale = 1.0f;    // multiplies (ModelOpt's weight_scale_2); 1 unless format.global_scale
};

// Extents of the scale grid; 0 for a format without block scales. A last partial block has its own scale.
int64_t scale_rows(const Format& format, int64_t n);
int64_t scale_cols(const Format& format, int64_t k);
// Bytes of `data` and of `scale`.
int64_t encoded_data_bytes(const Format& format, int64_t n, int64_t k);
int64_t encoded_scale_bytes(const Format& format, int64_t n, int64_t k);

// out[0..k) = float32 values of one row. Element times block scale is a float32 product (exact for NVFP4, whose factors
// have 2 + 4 significant bits); the global scale multiplies last and rounds once.
// NaN codes decode to NaN. Formats: F32, F16, BF16, E4M3 or E5M2 with any scale grid, NVFP4.
void decode_row(const EncodedMatrix& matrix, int64_t row, float* out);

// One block scale as float.
float decode_scale(const EncodedMatrix& matrix, int64_t scale_row, int64_t scale_col);

}  // namespace plumb
