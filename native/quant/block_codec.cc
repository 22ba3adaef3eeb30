#include "quant/block_codec.h"

#include <cstring>

namespace pelton {

namespace {

std::uint16_t read_u16(const std::uint8_t* p) {
  std::uint16_t x;
  std::memcpy(&x, p, 2);
  return x;
}

std::uint8_t u8(unsigned x) { return static_cast<std::uint8_t>(x); }

void decode_q8_0(const std::uint8_t* p, DecodedBlock& out) {
  out.scale[0] = read_u16(p);
  // Signed bytes become unsigned codes with zero point 128.
  for (int i = 0; i < 32; ++i) out.code[i] = u8(p[2 + i] ^ 0x80u);
}

// 4-bit codes of a 32-block: input i in the low, input i+16 in the high nibble of byte i.
void decode_nibbles(const std::uint8_t* q, std::uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = u8(q[i] & 15u);
    code[i + 16] = u8(q[i] >> 4);
  }
}

// Adds the fifth bit of each code: bit i of the little-endian word at p belongs to input i.
void add_fifth_bits(const std::uint8_t* p, std::uint8_t* code) {
  for (int i = 0; i < 32; ++i) code[i] = u8(code[i] | (((static_cast<unsigned>(p[i / 8]) >> (i % 8)) & 1u) << 4));
}

void decode_q4(const std::uint8_t* p, bool has_min, DecodedBlock& out) {
  out.scale[0] = read_u16(p);
  if (has_min) out.min[0] = read_u16(p + 2);
  decode_nibbles(p + (has_min ? 4 : 2), out.code);
}

void decode_q5(const std::uint8_t* p, bool has_min, DecodedBlock& out) {
  out.scale[0] = read_u16(p);
  if (has_min) out.min[0] = read_u16(p + 2);
  const std::uint8_t* high = p + (has_min ? 4 : 2);
  decode_nibbles(high + 4, out.code);
  add_fifth_bits(high, out.code);
}

void decode_q2_k(const std::uint8_t* p, DecodedBlock& out) {
  for (int g = 0; g < 16; ++g) {
    out.scale[g] = p[g] & 15;
    out.min[g] = p[g] >> 4;
  }
  const std::uint8_t* q = p + 16;
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int plane = (i % 128) / 32;
    out.code[i] = u8((static_cast<unsigned>(q[half * 32 + i % 32]) >> (2 * plane)) & 3u);
  }
  out.super_scale = read_u16(p + 80);
  out.super_min = static_cast<std::uint16_t>(read_u16(p + 82) ^ 0x8000u);
}

void decode_q3_k(const std::uint8_t* p, DecodedBlock& out) {
  const std::uint8_t* high = p;
  const std::uint8_t* q = p + 32;
  const std::uint8_t* packed = p + 96;
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int plane = (i % 128) / 32;
    const unsigned low = (static_cast<unsigned>(q[half * 32 + i % 32]) >> (2 * plane)) & 3u;
    const unsigned bit = (static_cast<unsigned>(high[i % 32]) >> (i / 32)) & 1u;
    out.code[i] = u8(low | (bit << 2));
  }
  // 16 six-bit scales: low nibbles in bytes 0..7 (low, then high halves), top bit pairs in bytes 8..11.
  for (int g = 0; g < 16; ++g) {
    const unsigned low = g < 8 ? packed[g] & 15u : static_cast<unsigned>(packed[g - 8]) >> 4;
    const unsigned top = (static_cast<unsigned>(packed[8 + g % 4]) >> (2 * (g / 4))) & 3u;
    out.scale[g] = static_cast<std::int32_t>(low | (top << 4)) - 32;
  }
  out.super_scale = read_u16(p + 108);
}

// The 8 six-bit scales and minima of Q4_K and Q5_K, in 12 bytes.
void decode_k_scales(const std::uint8_t* p, DecodedBlock& out) {
  for (int g = 0; g < 8; ++g) {
    if (g < 4) {
      out.scale[g] = p[g] & 63;
      out.min[g] = p[g + 4] & 63;
    } else {
      out.scale[g] = (p[g + 4] & 15) | ((p[g - 4] >> 6) << 4);
      out.min[g] = (p[g + 4] >> 4) | ((p[g] >> 6) << 4);
    }
  }
}

void decode_q4_k(const std::uint8_t* p, bool has_fifth_bit, DecodedBlock& out) {
  out.super_scale = read_u16(p);
  out.super_min = static_cast<std::uint16_t>(read_u16(p + 2) ^ 0x8000u);
  decode_k_scales(p + 4, out);
  const std::uint8_t* high = p + 16;
  const std::uint8_t* q = p + 16 + (has_fifth_bit ? 32 : 0);
  for (int i = 0; i < 256; ++i) {
    const int pair = i / 64;
    const unsigned byte = q[pair * 32 + i % 32];
    unsigned code = i % 64 < 32 ? byte & 15u : byte >> 4;
    if (has_fifth_bit) code |= ((static_cast<unsigned>(high[i % 32]) >> (i / 32)) & 1u) << 4;
    out.code[i] = u8(code);
  }
}

void decode_q6_k(const std::uint8_t* p, DecodedBlock& out) {
  const std::uint8_t* low = p;
  const std::uint8_t* high = p + 128;
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int quarter = (i % 128) / 32;
    const unsigned byte = low[half * 64 + (quarter % 2) * 32 + i % 32];
    const unsigned nibble = quarter < 2 ? byte & 15u : byte >> 4;
    const unsigned top = (static_cast<unsigned>(high[half * 32 + i % 32]) >> (2 * quarter)) & 3u;
    out.code[i] = u8(nibble | (top << 4));
  }
  for (int g = 0; g < 16; ++g) out.scale[g] = static_cast<std::int8_t>(p[192 + g]);
  out.super_scale = read_u16(p + 208);
}

}  // namespace

void decode_block(const PackedFormat& format, const std::uint8_t* p, DecodedBlock& out) {
  switch (format.type) {
    case BlockType::kQ8_0:
      return decode_q8_0(p, out);
    case BlockType::kQ4_0:
    case BlockType::kQ4_1:
      return decode_q4(p, format.has_min, out);
    case BlockType::kQ5_0:
    case BlockType::kQ5_1:
      return decode_q5(p, format.has_min, out);
    case BlockType::kQ2_K:
      return decode_q2_k(p, out);
    case BlockType::kQ3_K:
      return decode_q3_k(p, out);
    case BlockType::kQ4_K:
      return decode_q4_k(p, false, out);
    case BlockType::kQ5_K:
      return decode_q4_k(p, true, out);
    case BlockType::kQ6_K:
      return decode_q6_k(p, out);
    case BlockType::kF32:
    case BlockType::kF16:
    case BlockType::kBF16:
      return;
  }
}

}  // namespace pelton
