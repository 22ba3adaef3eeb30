// The int8 probe on AMX tiles: full tiles, 16 rows x 64 inputs x 16 rows, with independent sums.

inline constexpr int kInt8Chains = 4;
inline constexpr double kInt8OpsPerRound = kInt8Chains * 16 * 64 * 16 * 2.0;

inline float run_int8(std::int64_t num_rounds) {
  alignas(64) std::uint8_t config[64] = {1};  // palette 1
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = 64;  // bytes per row
    config[48 + tile] = 16;      // rows
  }
  _tile_loadconfig(config);
  alignas(64) std::int32_t sums[256];
  for (std::int32_t& four : sums) four = 0x01ff02fe;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_loadd(4, sums, 64);
  _tile_loadd(5, sums, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  std::int32_t total = 0;
  _tile_stored(0, sums, 64);
  total ^= sums[0];
  _tile_stored(1, sums, 64);
  total ^= sums[1];
  _tile_stored(2, sums, 64);
  total ^= sums[2];
  _tile_stored(3, sums, 64);
  total ^= sums[3];
  _tile_release();
  return static_cast<float>(total);
}
