// One row through a Qwen3 body (`body_step`), and a frame of the code predictor (`predict`), in one
// launch each; see cuda_step.py, which defines the sizes in capitals.
//
// PROGRAMS blocks of 256 threads, one a processor, stay from the first layer to the last. They meet
// at a counter between products. A warp takes whole rows of a weight, its lanes 8 neighbouring
// inputs at a time. The weights of the next product are loaded into registers between `arrive` and
// `wait`; what the product before wrote is read after that, past the L1 cache.
//
// Norms and sums are in fp32; residuals, normed rows, queries, keys, gates and logits are rounded
// to bf16, as the kernels of more rows do.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 256
#define WARPS 8
#define CHANNELS 128
#define HALF 64
#define GROUP 2
#define KV_HEADS 8
#define Q_HEADS 16
#define KV_WIDTH (KV_HEADS * CHANNELS)
#define ATTENDED (Q_HEADS * CHANNELS)
#define OUTPUTS (ATTENDED + 2 * KV_WIDTH)
#define READ_ROWS (OUTPUTS / (PROGRAMS * WARPS))
#define WIDE_ROWS (FFN / (PROGRAMS * WARPS))
#define OWN_ROWS (HIDDEN / (PROGRAMS * WARPS))
#define PARTS (PROGRAMS / KV_HEADS)
#define LOWEST -1e30f

// --- numbers ---

__device__ __forceinline__ float low(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high(u32 two) { return __uint_as_float(two & 0xffff0000u); }
__device__ __forceinline__ float wide_of(u16 x) { return __uint_as_float((u32)x << 16); }

__device__ __forceinline__ u16 narrow_of(float x) {
  u16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float round_off(float x) { return wide_of(narrow_of(x)); }

__device__ __forceinline__ void eight(uint4 v, float* to) {
  to[0] = low(v.x), to[1] = high(v.x), to[2] = low(v.y), to[3] = high(v.y);
  to[4] = low(v.z), to[5] = high(v.z), to[6] = low(v.w), to[7] = high(v.w);
}

__device__ __forceinline__ float sum_of(float x) {
#pragma unroll
  for (int far = 16; far; far >>= 1) x += __shfl_xor_sync(~0u, x, far);
  return x;
}

__device__ __forceinline__ float half_sum_of(float x) {  // of 16 lanes
#pragma unroll
  for (int far = 8; far; far >>= 1) x += __shfl_xor_sync(~0u, x, far);
  return x;
}

// --- memory ---

// volatile: stays where it is written, between `arrive` and `wait`.
__device__ __forceinline__ uint4 weights(const u16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint4 fresh4(const void* p) { return __ldcg((const uint4*)p); }
__device__ __forceinline__ float fresh(const u16* p) { return wide_of(__ldcg(p)); }

// Begins to bring weights into L2.
__device__ __forceinline__ void fetch(const u16* p, int count) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(2 * count));
#endif
}

__device__ __forceinline__ void arrive(u64* arrived) {
  __syncthreads();  // all threads have written before one of them says so
  if (threadIdx.x == 0)
    asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(arrived) : "memory");
}

__device__ __forceinline__ void wait(u64* arrived, u64& target) {
  if (threadIdx.x == 0) {
    u64 count;
    do {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(arrived) : "memory");
    } while (count < target);
  }
  __syncthreads();
  target += PROGRAMS;
}

// Every launch adds a multiple of PROGRAMS, and none meets before this block arrives.
__device__ __forceinline__ u64 first_target(u64* arrived) {
  u64 count;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(count) : "l"(arrived) : "memory");
  return (count / PROGRAMS + 1) * PROGRAMS;
}

// --- products ---

template <int COUNT>
__device__ __forceinline__ void take(uint4 (&to)[COUNT], const u16* from, int lane) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) to[i] = weights(from + (i * 32 + lane) * 8);
}

__device__ __forceinline__ float dot(uint4 w, const float* y, float sum) {
  float v[8];
  eight(w, v);
#pragma unroll
  for (int i = 0; i < 8; i++) sum = fmaf(v[i], y[i], sum);
  return sum;
}

__device__ __forceinline__ float dot(uint4 w, uint4 y, float sum) {
  float v[8];
  eight(y, v);
  return dot(w, v, sum);
}

// This lane's inputs of a row, normed; row and weight in shared memory.
template <int INPUTS>
__device__ __forceinline__ void norm(const u16* row, const u16* weight, float eps, int lane,
                                     float (&y)[INPUTS / 32]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < INPUTS / 256; i++) {
    eight(*(const uint4*)(row + (i * 32 + lane) * 8), y + 8 * i);
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(y[8 * i + j], y[8 * i + j], squares);
  }
  float scale = rsqrtf(sum_of(squares) / INPUTS + eps);
#pragma unroll
  for (int i = 0; i < INPUTS / 256; i++) {
    float w[8];
    eight(*(const uint4*)(weight + (i * 32 + lane) * 8), w);
#pragma unroll
    for (int j = 0; j < 8; j++) y[8 * i + j] = round_off(y[8 * i + j] * scale * w[j]);
  }
}

template <int COUNT>
__device__ __forceinline__ void stage(u16* to, const u16* from) {
  for (int i = threadIdx.x; i < COUNT / 8; i += THREADS) ((uint4*)to)[i] = fresh4(from + 8 * i);
  __syncthreads();
}

// This thread's share of the weight of a norm, to be taken before `wait` and staged after it.
__device__ __forceinline__ uint4 norm_share(const u16* weight) {
  uint4 v = {};
  if (threadIdx.x < HIDDEN / 8) v = weights(weight + threadIdx.x * 8);
  return v;
}

__device__ __forceinline__ void stage_norm(u16* to, uint4 share) {
  if (threadIdx.x < HIDDEN / 8) ((uint4*)to)[threadIdx.x] = share;
}

// --- the phases of a layer ---

#define READ_COUNT (READ_ROWS * HIDDEN / 256)
// A gate and what it opens, or as many of them as registers hold at once.
#define PAIR_COUNT (HIDDEN / 256)
#define PAIRS_HELD (HIDDEN <= 1024 && WIDE_ROWS <= 3 ? WIDE_ROWS : 1)
#define DOWN_COUNT (FFN / 256)
#define READ_HELD (READ_COUNT <= 16 ? READ_COUNT : READ_COUNT / 2)

template <int ROWS>
__device__ __forceinline__ void read_heads(const float (&y)[ROWS][HIDDEN / 32],
                                           uint4 (&held)[READ_HELD], const u16* weight, u16* heads,
                                           int own, int lane) {
  constexpr int PER_ROW = HIDDEN / 256;
  constexpr int ROUNDS = READ_COUNT / READ_HELD;
  constexpr int EACH = READ_ROWS / ROUNDS;
#pragma unroll
  for (int round = 0; round < ROUNDS; round++) {
    if (round) take(held, weight + (own * READ_ROWS + round * EACH) * HIDDEN, lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PER_ROW; i++) sum = dot(held[j * PER_ROW + i], y[r] + 8 * i, sum);
        sum = sum_of(sum);
        if (lane == 0) heads[r * OUTPUTS + own * READ_ROWS + round * EACH + j] = narrow_of(sum);
      }
  }
}

struct Pairs {
  uint4 gate[PAIRS_HELD * PAIR_COUNT], up[PAIRS_HELD * PAIR_COUNT];
  __device__ __forceinline__ void take_from(const u16* weight, int row, int lane) {
    take(gate, weight + row * HIDDEN, lane);
    take(up, weight + (FFN + row) * HIDDEN, lane);
  }
};

template <int ROWS>
__device__ __forceinline__ void widen(const float (&y)[ROWS][HIDDEN / 32], Pairs& held,
                                      const u16* weight, u16* wide, int own, int lane) {
#pragma unroll
  for (int first = 0; first < WIDE_ROWS; first += PAIRS_HELD) {
    Pairs next;
    int row = own * WIDE_ROWS + first;
    if (first + PAIRS_HELD < WIDE_ROWS) next.take_from(weight, row + PAIRS_HELD, lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int p = 0; p < PAIRS_HELD; p++) {
        float gate = 0, up = 0;
#pragma unroll
        for (int i = 0; i < PAIR_COUNT; i++) {
          gate = dot(held.gate[p * PAIR_COUNT + i], y[r] + 8 * i, gate);
          up = dot(held.up[p * PAIR_COUNT + i], y[r] + 8 * i, up);
        }
        gate = round_off(sum_of(gate)), up = round_off(sum_of(up));
        if (lane == 0) wide[r * FFN + row + p] = narrow_of(gate / (1 + __expf(-gate)) * up);
      }
    if (first + PAIRS_HELD < WIDE_ROWS) held = next;
  }
}

// Rows of the last weight of a layer times what is wide, in shared memory.
template <int ROWS>
__device__ __forceinline__ void narrow(const u16* wide, uint4 (&held)[DOWN_COUNT],
                                       const u16* weight, int own, int lane,
                                       float (&found)[ROWS][OWN_ROWS]) {
#pragma unroll
  for (int j = 0; j < OWN_ROWS; j++) {
    if (j) take(held, weight + (own * OWN_ROWS + j) * FFN, lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < DOWN_COUNT; i++)
        sum = dot(held[i], *(const uint4*)(wide + r * FFN + (i * 32 + lane) * 8), sum);
      found[r][j] = sum_of(sum);
    }
  }
}

// The 8 channels of this lane, of 16, of a query or key: norm, rotation, rounding.
struct Turn {
  float cos[8], sin[8];
  __device__ __forceinline__ Turn(const float* cosines, const float* sines, int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++)
      cos[j] = cosines[lane % 16 * 8 + j], sin[j] = sines[lane % 16 * 8 + j];
  }
  __device__ __forceinline__ void apply(const u16* raw, uint4 weight, float eps, int lane,
                                        float (&y)[8]) const {
    float w[8], squares = 0;
    eight(fresh4(raw + lane % 16 * 8), y);
    eight(weight, w);
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(y[j], y[j], squares);
    float scale = rsqrtf(half_sum_of(squares) / CHANNELS + eps);
    float sign = lane % 16 < 8 ? -1.f : 1.f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      y[j] *= scale * w[j];
      float other = __shfl_xor_sync(~0u, y[j], 8);
      y[j] = round_off(y[j] * cos[j] + sign * other * sin[j]);
    }
  }
};

__device__ __forceinline__ uint4 packed(const float (&y)[8]) {
  uint4 v;
  v.x = narrow_of(y[0]) | (u32)narrow_of(y[1]) << 16;
  v.y = narrow_of(y[2]) | (u32)narrow_of(y[3]) << 16;
  v.z = narrow_of(y[4]) | (u32)narrow_of(y[5]) << 16;
  v.w = narrow_of(y[6]) | (u32)narrow_of(y[7]) << 16;
  return v;
}

struct Weights {
  const u16 *attention_norm, *qkv, *q_norm, *k_norm, *out, *ffn_norm, *gate_up, *down;
  __device__ __forceinline__ Weights of(int layer) const {
    size_t n = layer;
    return {attention_norm + n * HIDDEN,   qkv + n * OUTPUTS * HIDDEN, q_norm + n * CHANNELS,
            k_norm + n * CHANNELS,         out + n * HIDDEN * ATTENDED, ffn_norm + n * HIDDEN,
            gate_up + n * 2 * FFN * HIDDEN, down + n * HIDDEN * FFN};
  }
};

#define WEIGHT_ARGUMENTS                                                                           \
  const u16 *attention_norm, const u16 *qkv, const u16 *q_norm, const u16 *k_norm, const u16 *out, \
      const u16 *ffn_norm, const u16 *gate_up, const u16 *down, const u16 *final_norm

#ifdef PAGE

// --- one row through a body, over a paged cache ---

#define KEYS_A_WARP (PAGE / WARPS)
#define KEYS_A_HALF (KEYS_A_WARP / 2)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    body_step(const u16* x, u16* result, const float* cosines, const float* sines,
              const long long* position, u16* k_cache, u16* v_cache, const int* page_table,
              const int* length, const long long* slot, WEIGHT_ARGUMENTS, u16* row, u16* heads,
              float* parts, float* sums, u16* wide, u64* arrived, const long long* layer_stride,
              const float* scalars) {
  __shared__ __align__(16) u16 staged[FFN > ATTENDED ? FFN : ATTENDED], norms[HIDDEN];
  __shared__ float tops[2 * WARPS][GROUP], totals[2 * WARPS][GROUP];
  __shared__ float found_sums[2 * WARPS][GROUP][CHANNELS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int own = blockIdx.x * WARPS + warp;
  const int half = lane / 16, channel = lane % 16 * 8;
  const float scale = scalars[0], eps = scalars[1];
  const int past = *length - 1;
  const int pages = (past + PAGE - 1) / PAGE;
  const int used = pages < 1 ? 1 : pages < PARTS ? pages : PARTS;
  const int head = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
  const size_t own_slot = *slot * KV_WIDTH + head * CHANNELS;
  const Turn turn(cosines + *position * CHANNELS, sines + *position * CHANNELS, lane);
  const Weights all = {attention_norm, qkv, q_norm, k_norm, out, ffn_norm, gate_up, down};
  u64 target = first_target(arrived);

  uint4 held[READ_HELD];
  take(held, all.qkv + own * READ_ROWS * HIDDEN, lane);
  uint4 normed = norm_share(all.attention_norm);
  const u16* source = x;
#pragma unroll 1
  for (int layer = 0; layer < LAYERS; layer++) {
    const Weights w = all.of(layer);
    if (lane == 0) fetch(w.out + own * OWN_ROWS * ATTENDED, OWN_ROWS * ATTENDED);
    {
      float y[1][HIDDEN / 32];
      stage_norm(norms, normed);
      stage<HIDDEN>(staged, source);
      norm<HIDDEN>(staged, norms, eps, lane, y[0]);
      read_heads(y, held, w.qkv, heads, own, lane);
    }
    arrive(arrived);

    // Attention: each block some pages of one kv head, each half of a warp some keys.
    u16* keys = k_cache + layer * *layer_stride + head * CHANNELS;
    u16* values = v_cache + layer * *layer_stride + head * CHANNELS;
    uint4 k[KEYS_A_HALF], v[KEYS_A_HALF];
    if (part < pages) {
      size_t base = (size_t)page_table[part] * PAGE;
#pragma unroll
      for (int i = 0; i < KEYS_A_HALF; i++) {
        size_t at = (base + warp * KEYS_A_WARP + 2 * i + half) * KV_WIDTH + channel;
        k[i] = fresh4(keys + at), v[i] = fresh4(values + at);
      }
    }
    const uint4 q_weight = weights(w.q_norm + channel), k_weight = weights(w.k_norm + channel);
    if (lane == 0) {
      fetch(w.gate_up + own * WIDE_ROWS * HIDDEN, WIDE_ROWS * HIDDEN);
      fetch(w.gate_up + (FFN + own * WIDE_ROWS) * HIDDEN, WIDE_ROWS * HIDDEN);
    }
    wait(arrived, target);
    if (part < used) {
      float q[GROUP][8], top[GROUP], total[GROUP], sum[GROUP][8];
#pragma unroll
      for (int g = 0; g < GROUP; g++)
        turn.apply(heads + (head * GROUP + g) * CHANNELS, q_weight, eps, lane, q[g]);
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        top[g] = LOWEST, total[g] = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) sum[g][j] = 0;
      }
      if (part == 0 && warp == 0) {  // the row's own key, of which the first half takes care
        float own_key[8];
        turn.apply(heads + ATTENDED + head * CHANNELS, k_weight, eps, lane, own_key);
        uint4 own_value = fresh4(heads + ATTENDED + KV_WIDTH + head * CHANNELS + channel);
        float score[GROUP];
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
          score[g] = 0;
#pragma unroll
          for (int j = 0; j < 8; j++) score[g] = fmaf(q[g][j], own_key[j], score[g]);
          score[g] = half_sum_of(score[g]) * scale;
        }
        if (half == 0) {
          *(uint4*)(k_cache + layer * *layer_stride + own_slot + channel) = packed(own_key);
          *(uint4*)(v_cache + layer * *layer_stride + own_slot + channel) = own_value;
#pragma unroll
          for (int g = 0; g < GROUP; g++) {
            top[g] = score[g], total[g] = 1;
            eight(own_value, sum[g]);
          }
        }
      }
      for (int page = part; page < pages; page += PARTS) {
        int first = page * PAGE + warp * KEYS_A_WARP;
        if (page != part) {
          size_t base = (size_t)page_table[page] * PAGE;
#pragma unroll
          for (int i = 0; i < KEYS_A_HALF; i++) {
            size_t at = (base + warp * KEYS_A_WARP + 2 * i + half) * KV_WIDTH + channel;
            k[i] = fresh4(keys + at), v[i] = fresh4(values + at);
          }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
          float score[KEYS_A_HALF], higher = top[g];
#pragma unroll
          for (int i = 0; i < KEYS_A_HALF; i++) {
            score[i] = half_sum_of(dot(k[i], q[g], 0)) * scale;
            if (first + 2 * i + half < past) higher = fmaxf(higher, score[i]);
          }
          float fade = __expf(top[g] - higher);
          total[g] *= fade;
#pragma unroll
          for (int j = 0; j < 8; j++) sum[g][j] *= fade;
#pragma unroll
          for (int i = 0; i < KEYS_A_HALF; i++)
            if (first + 2 * i + half < past) {
              float share = __expf(score[i] - higher), value[8];
              eight(v[i], value);
              total[g] += share;
#pragma unroll
              for (int j = 0; j < 8; j++) sum[g][j] = fmaf(share, value[j], sum[g][j]);
            }
          top[g] = higher;
        }
      }
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        if (lane % 16 == 0) tops[2 * warp + half][g] = top[g], totals[2 * warp + half][g] = total[g];
#pragma unroll
        for (int j = 0; j < 8; j++) found_sums[2 * warp + half][g][channel + j] = sum[g][j];
      }
      __syncthreads();
      int g = threadIdx.x / CHANNELS, c = threadIdx.x % CHANNELS;
      float higher = LOWEST, all_total = 0, all_sum = 0;
#pragma unroll
      for (int i = 0; i < 2 * WARPS; i++) higher = fmaxf(higher, tops[i][g]);
#pragma unroll
      for (int i = 0; i < 2 * WARPS; i++) {
        float share = __expf(tops[i][g] - higher);
        all_total = fmaf(share, totals[i][g], all_total);
        all_sum = fmaf(share, found_sums[i][g][c], all_sum);
      }
      int shared = (head * GROUP + g) * PARTS + part;
      parts[shared * CHANNELS + c] = all_sum;
      if (c == 0) sums[shared * 2] = higher, sums[shared * 2 + 1] = all_total;
    }
    arrive(arrived);
    uint4 out_held[OWN_ROWS * ATTENDED / 256];
    take(out_held, w.out + own * OWN_ROWS * ATTENDED, lane);
    if (lane == 0) fetch(w.down + own * OWN_ROWS * FFN, OWN_ROWS * FFN);
    wait(arrived, target);

    {  // The parts of all heads put together, and the output projection.
      int shared = threadIdx.x / 16 * PARTS;
      float higher = LOWEST, total = 0, sum[8] = {};
      for (int i = 0; i < used; i++) higher = fmaxf(higher, __ldcg(sums + (shared + i) * 2));
      for (int i = 0; i < used; i++) {
        float share = __expf(__ldcg(sums + (shared + i) * 2) - higher);
        total = fmaf(share, __ldcg(sums + (shared + i) * 2 + 1), total);
        const float4* from = (const float4*)(parts + (shared + i) * CHANNELS + channel);
        float4 a = __ldcg(from), b = __ldcg(from + 1);
        sum[0] = fmaf(share, a.x, sum[0]), sum[1] = fmaf(share, a.y, sum[1]);
        sum[2] = fmaf(share, a.z, sum[2]), sum[3] = fmaf(share, a.w, sum[3]);
        sum[4] = fmaf(share, b.x, sum[4]), sum[5] = fmaf(share, b.y, sum[5]);
        sum[6] = fmaf(share, b.z, sum[6]), sum[7] = fmaf(share, b.w, sum[7]);
      }
#pragma unroll
      for (int j = 0; j < 8; j++) sum[j] /= total;
      *(uint4*)(staged + threadIdx.x * 8) = packed(sum);
      __syncthreads();
#pragma unroll
      for (int r = 0; r < OWN_ROWS; r++) {
        float found = 0;
#pragma unroll
        for (int i = 0; i < ATTENDED / 256; i++)
          found = dot(out_held[r * (ATTENDED / 256) + i],
                      *(const uint4*)(staged + (i * 32 + lane) * 8), found);
        found = sum_of(found);
        if (lane == 0) {
          int at = own * OWN_ROWS + r;
          row[at] = narrow_of(fresh(source + at) + found);
        }
      }
      source = row;
    }
    arrive(arrived);
    Pairs pairs;
    pairs.take_from(w.gate_up, own * WIDE_ROWS, lane);
    normed = norm_share(w.ffn_norm);
    wait(arrived, target);

    const Weights following = all.of(layer + 1 < LAYERS ? layer + 1 : 0);
    if (lane == 0) fetch(following.qkv + own * READ_ROWS * HIDDEN, READ_ROWS * HIDDEN);
    {
      float y[1][HIDDEN / 32];
      stage_norm(norms, normed);
      stage<HIDDEN>(staged, source);
      norm<HIDDEN>(staged, norms, eps, lane, y[0]);
      widen(y, pairs, w.gate_up, wide, own, lane);
    }
    arrive(arrived);
    uint4 down_held[DOWN_COUNT];
    take(down_held, w.down + own * OWN_ROWS * FFN, lane);
    wait(arrived, target);

    {
      float found[1][OWN_ROWS];
      stage<FFN>(staged, wide);
      narrow(staged, down_held, w.down, own, lane, found);
      if (lane == 0)
#pragma unroll
        for (int j = 0; j < OWN_ROWS; j++) {
          int at = own * OWN_ROWS + j;
          row[at] = narrow_of(fresh(row + at) + found[0][j]);
        }
    }
    arrive(arrived);
    take(held, following.qkv + own * READ_ROWS * HIDDEN, lane);
    normed = norm_share(following.attention_norm);
    wait(arrived, target);
  }
  if (blockIdx.x == 0) {
    float y[HIDDEN / 32];
    stage_norm(norms, norm_share(final_norm));
    stage<HIDDEN>(staged, row);
    norm<HIDDEN>(staged, norms, eps, lane, y);
    if (warp == 0)
#pragma unroll
      for (int i = 0; i < HIDDEN / 256; i++) {
        float of[8];
#pragma unroll
        for (int j = 0; j < 8; j++) of[j] = y[8 * i + j];
        *(uint4*)(result + (i * 32 + lane) * 8) = packed(of);
      }
  }
}

#endif
#ifdef STEPS

// --- a frame's codes ---

template <int N>
struct Rows {
  static constexpr int COUNT = N;
};

#define SHARE_ROWS (HIDDEN / PARTS)  // of a kv head's queries, of the output projection
#define SHARE_WARP_ROWS (SHARE_ROWS / WARPS)
#define SAID_ROWS (CODES / (PROGRAMS * WARPS))
#define HELD_CODES (CODES / THREADS)

// The noise of sampling.py: a hash, and its double logarithm in products, quotients and sums that
// are rounded one by one.
__device__ __forceinline__ float logarithm(float x) {
  int bits = __float_as_int(x);
  int exponent = (bits - 0x3F3504F3) >> 23;
  float f = __fadd_rn(__int_as_float(bits - (exponent << 23)), -1.0f);
  float s = __fdiv_rn(f, __fadd_rn(f, 2.0f));
  float z = __fmul_rn(s, s);
  float series = __fadd_rn(__fmul_rn(z, (float)(1.0 / 9)), (float)(1.0 / 7));
  series = __fadd_rn(__fmul_rn(z, series), (float)(1.0 / 5));
  series = __fadd_rn(__fmul_rn(z, series), (float)(1.0 / 3));
  series = __fadd_rn(__fmul_rn(z, series), 1.0f);
  return __fadd_rn(__fmul_rn(__fmul_rn(s, 2.0f), series),
                   __fmul_rn((float)exponent, 0.6931471805599453f));
}

__device__ __forceinline__ float noise(u64 key, u32 code) {
  u32 x = (u32)key + code * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = x ^ (x >> 15) ^ (u32)(key >> 32);
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  float number = __fmul_rn((float)((x >> 9) * 2 + 1), 5.9604644775390625e-08f);
  return -logarithm(-logarithm(number));
}

__device__ __forceinline__ u64 key_of(u64 seed, u64 frame, u64 codebook) {
  u64 key = seed + (frame * 16 + codebook + 1) * 0x9E3779B97F4A7C15ull;
  key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9ull;
  key = (key ^ (key >> 27)) * 0x94D049BB133111EBull;
  return key ^ (key >> 31);
}

__device__ __forceinline__ u32 order_of(float x) {
  int bits = __float_as_int(__fadd_rn(x, 0.0f));
  return (u32)(bits ^ ((bits >> 31) | 0x80000000));
}

// The code drawn of logits in memory, by all threads of a block. Two bits of the k-th largest are
// found at a time: three counts in one sum.
__device__ __forceinline__ int draw(const u16* logits, u64 key, float temperature, int k, u32* counts,
                                    u64* best) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (k <= 0 || k > CODES) k = CODES;
  float value[HELD_CODES];
  u32 order[HELD_CODES];
  eight(fresh4(logits + threadIdx.x * 8), value);
#pragma unroll
  for (int i = 0; i < HELD_CODES; i++) order[i] = order_of(value[i]);
  u32 least = 0;
#pragma unroll
  for (int round = 0; round < 8; round++) {
    u32 one = 1u << (30 - 2 * round), count = 0;
#pragma unroll
    for (int i = 0; i < HELD_CODES; i++) {
      count += order[i] >= least + one;
      count += (u32)(order[i] >= least + 2 * one) << 10;
      count += (u32)(order[i] >= least + 3 * one) << 20;
    }
    // 256 codes a warp: 9 bits are enough for each count, and 10 are there.
    count = __reduce_add_sync(~0u, count);
    u32* here = counts + round % 2 * WARPS;
    if (lane == 0) here[warp] = count;
    __syncthreads();
    u32 c1 = 0, c2 = 0, c3 = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      u32 c = here[i];
      c1 += c & 1023, c2 += c >> 10 & 1023, c3 += c >> 20;
    }
    least += one * ((c1 >= k) + (c2 >= k) + (c3 >= k));
  }
  u64 mine = 0;
#pragma unroll
  for (int i = 0; i < HELD_CODES; i++)
    if (order[i] >= least) {
      u32 code = threadIdx.x * 8 + i;
      float score = __fadd_rn(__fdiv_rn(value[i], temperature), noise(key, code));
      u64 packed = (u64)order_of(score) << 32 | (u32)~code;  // of equals the first
      if (packed > mine) mine = packed;
    }
#pragma unroll
  for (int far = 16; far; far >>= 1) {
    u64 other = __shfl_xor_sync(~0u, mine, far);
    if (other > mine) mine = other;
  }
  if (lane == 0) best[warp] = mine;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < WARPS; i++)
    if (best[i] > mine) mine = best[i];
  return (int)~(u32)mine;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    predict(const u16* hidden, const long long* first, long long* codes, const long long* seeds,
            const long long* frames, const float* temperature, const long long* top_k,
            const float* cosines, const float* sines, const u16* projection, const u16* bias,
            const u16* first_table, const u16* tables, const u16* code_heads, WEIGHT_ARGUMENTS,
            u16* start, u16* row, u16* heads, float* shares, u16* wide, u16* logits, u16* cached,
            u64* arrived, const long long* table_stride, const float* scalars) {
  __shared__ __align__(16) u16 staged[2 * FFN], norms[HIDDEN];
  __shared__ __align__(16) u16 value_rows[STEPS][CHANNELS];
  __shared__ float scores[GROUP][STEPS];
  __shared__ u32 counts[2 * WARPS];
  __shared__ u64 best[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int own = blockIdx.x * WARPS + warp;
  const int half = lane / 16, channel = lane % 16 * 8;
  const float scale = scalars[0], eps = scalars[1];
  const int head = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
  const int share_row = part * SHARE_ROWS + warp * SHARE_WARP_ROWS;
  const Weights all = {attention_norm, qkv, q_norm, k_norm, out, ffn_norm, gate_up, down};
  u64 target = first_target(arrived);

  uint4 held[READ_HELD];
  take(held, all.qkv + own * READ_ROWS * HIDDEN, lane);
  uint4 normed = norm_share(all.attention_norm);
  const u16* begin = hidden;
#ifdef PROJECT
#pragma unroll
  for (int r = 0; r < OWN_ROWS; r++) {
    float found = 0;
#pragma unroll
    for (int i = 0; i < TALKER / 256; i++)
      found = dot(weights(projection + (own * OWN_ROWS + r) * TALKER + (i * 32 + lane) * 8),
                  *(const uint4*)(hidden + (i * 32 + lane) * 8), found);
    found = sum_of(found);
    if (lane == 0) start[own * OWN_ROWS + r] = narrow_of(found + wide_of(bias[own * OWN_ROWS + r]));
  }
  arrive(arrived);
  wait(arrived, target);
  begin = start;
#endif
  int code = *first;
  if (blockIdx.x == 0 && threadIdx.x == 0) codes[0] = code;
  // What this step begins with. The first step has two rows, the talker's and the first code's.
  const u16* source[2] = {begin, first_table + (size_t)code * HIDDEN};
  uint4 said_held[SAID_ROWS * HIDDEN / 256];

  // All layers of a step, whose last row is at position `step`.
  auto pass = [&](auto rows, int step) {
    constexpr int ROWS = decltype(rows)::COUNT;
    const Turn turn(cosines + step * CHANNELS, sines + step * CHANNELS, lane);
#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++) {
      const Weights w = all.of(layer);
      const Weights following = all.of(layer + 1 < LAYERS ? layer + 1 : 0);
      u16* keys = cached + layer * STEPS * KV_WIDTH + head * CHANNELS;
      u16* values = keys + LAYERS * STEPS * KV_WIDTH;
      if (lane == 0) {
        fetch(w.gate_up + own * WIDE_ROWS * HIDDEN, WIDE_ROWS * HIDDEN);
        fetch(w.gate_up + (FFN + own * WIDE_ROWS) * HIDDEN, WIDE_ROWS * HIDDEN);
      }
      {
        float y[ROWS][HIDDEN / 32];
        stage_norm(norms, normed);
        if (ROWS == 2) stage<HIDDEN>(staged + HIDDEN, source[1]);
        stage<HIDDEN>(staged, source[0]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) norm<HIDDEN>(staged + r * HIDDEN, norms, eps, lane, y[r]);
        read_heads(y, held, w.qkv, heads, own, lane);
      }
      arrive(arrived);
      // What the output projection takes of the kv head's queries: 256 inputs of a row.
      uint4 out_held[SHARE_WARP_ROWS], k = {}, v = {};
#pragma unroll
      for (int i = 0; i < SHARE_WARP_ROWS; i++)
        out_held[i] = weights(w.out + (share_row + i) * ATTENDED + head * GROUP * CHANNELS + lane * 8);
      const uint4 q_weight = weights(w.q_norm + channel), k_weight = weights(w.k_norm + channel);
      const int key = 2 * warp + half;
      const bool own_key = step - ROWS < key && key <= step;
      if (key < step && !own_key) {
        k = fresh4(keys + key * KV_WIDTH + channel);
        v = fresh4(values + key * KV_WIDTH + channel);
      }
      if (lane == 0) fetch(w.down + own * OWN_ROWS * FFN, OWN_ROWS * FFN);
      wait(arrived, target);

      {  // Attention of one kv head to all steps, again in every block that needs it.
        float q[GROUP][8], of[8];
        const u16* raw = heads + (ROWS - 1) * OUTPUTS;
#pragma unroll
        for (int g = 0; g < GROUP; g++)
          turn.apply(raw + (head * GROUP + g) * CHANNELS, q_weight, eps, lane, q[g]);
        if (warp == step / 2) {  // the keys of this step's rows
          if (ROWS == 2) raw = heads + half * OUTPUTS;
          raw += ATTENDED + head * CHANNELS;
          if (ROWS == 2)
            Turn(cosines + half * CHANNELS, sines + half * CHANNELS, lane)
                .apply(raw, k_weight, eps, lane, of);
          else
            turn.apply(raw, k_weight, eps, lane, of);
          if (own_key) {
            k = packed(of);
            v = fresh4(raw + KV_WIDTH + channel);
            if (part == 0) {
              *(uint4*)(keys + key * KV_WIDTH + channel) = k;
              *(uint4*)(values + key * KV_WIDTH + channel) = v;
            }
          }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
          float score = half_sum_of(dot(k, q[g], 0)) * scale;
          if (lane % 16 == 0 && key < STEPS) scores[g][key] = key <= step ? score : LOWEST;
        }
        if (key < STEPS) *(uint4*)(value_rows[key] + channel) = v;
        __syncthreads();
        // A lane's 8 inputs of the projection: those of query `half`.
        float higher = LOWEST, total = 0, y[ROWS][8] = {};
        for (int i = 0; i <= step; i++) higher = fmaxf(higher, scores[half][i]);
        for (int i = 0; i <= step; i++) {
          float share = __expf(scores[half][i] - higher);
          total += share;
          eight(*(const uint4*)(value_rows[i] + channel), of);
#pragma unroll
          for (int j = 0; j < 8; j++) y[ROWS - 1][j] = fmaf(share, of[j], y[ROWS - 1][j]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) y[ROWS - 1][j] = round_off(y[ROWS - 1][j] / total);
        if (ROWS == 2) eight(*(const uint4*)(value_rows[0] + channel), y[0]);  // sees itself alone
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
          for (int i = 0; i < SHARE_WARP_ROWS; i++) {
            float found = sum_of(dot(out_held[i], y[r], 0));
            if (lane == 0) shares[(r * KV_HEADS + head) * HIDDEN + share_row + i] = found;
          }
      }
      arrive(arrived);
      Pairs pairs;
      pairs.take_from(w.gate_up, own * WIDE_ROWS, lane);
      normed = norm_share(w.ffn_norm);
      wait(arrived, target);

      if (lane == 0) fetch(following.qkv + own * READ_ROWS * HIDDEN, READ_ROWS * HIDDEN);
      {
        // The residual with what every kv head's attention adds, 4 channels a thread.
        float y[ROWS][HIDDEN / 32];
        stage_norm(norms, normed);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
          for (int at = threadIdx.x * 4; at < HIDDEN; at += THREADS * 4) {
            uint2 two = __ldcg((const uint2*)(source[r] + at));
            float sum[4] = {low(two.x), high(two.x), low(two.y), high(two.y)};
#pragma unroll
            for (int h = 0; h < KV_HEADS; h++) {
              float4 more = __ldcg((const float4*)(shares + (r * KV_HEADS + h) * HIDDEN + at));
              sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
            }
            uint2 rounded;
            rounded.x = narrow_of(sum[0]) | (u32)narrow_of(sum[1]) << 16;
            rounded.y = narrow_of(sum[2]) | (u32)narrow_of(sum[3]) << 16;
            *(uint2*)(staged + r * HIDDEN + at) = rounded;
          }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; r++) norm<HIDDEN>(staged + r * HIDDEN, norms, eps, lane, y[r]);
        widen(y, pairs, w.gate_up, wide, own, lane);
      }
      float residual[ROWS][OWN_ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < OWN_ROWS; j++)
          residual[r][j] = wide_of(staged[r * HIDDEN + own * OWN_ROWS + j]);
      arrive(arrived);
      uint4 down_held[DOWN_COUNT];
      take(down_held, w.down + own * OWN_ROWS * FFN, lane);
      wait(arrived, target);

      {
        float found[ROWS][OWN_ROWS];
        if (ROWS == 2) stage<FFN>(staged + FFN, wide + FFN);
        stage<FFN>(staged, wide);
        narrow(staged, down_held, w.down, own, lane, found);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
          u16* to = row + (layer % 2 * 2 + r) * HIDDEN;
          if (lane == 0)
#pragma unroll
            for (int j = 0; j < OWN_ROWS; j++)
              to[own * OWN_ROWS + j] = narrow_of(residual[r][j] + found[r][j]);
          source[r] = to;
        }
      }
      arrive(arrived);
      take(held, following.qkv + own * READ_ROWS * HIDDEN, lane);
      const bool over = layer + 1 == LAYERS;
      normed = norm_share(over ? final_norm : following.attention_norm);
      if (over)
        take(said_held, code_heads + ((size_t)(step - 1) * CODES + own * SAID_ROWS) * HIDDEN, lane);
      wait(arrived, target);
    }
    {
      float y[HIDDEN / 32];
      stage_norm(norms, normed);
      stage<HIDDEN>(staged, source[ROWS - 1]);
      norm<HIDDEN>(staged, norms, eps, lane, y);
#pragma unroll
      for (int j = 0; j < SAID_ROWS; j++) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < HIDDEN / 256; i++)
          sum = dot(said_held[j * (HIDDEN / 256) + i], y + 8 * i, sum);
        sum = sum_of(sum);
        if (lane == 0) logits[own * SAID_ROWS + j] = narrow_of(sum);
      }
    }
    arrive(arrived);
    normed = norm_share(all.attention_norm);
    wait(arrived, target);
    code = draw(logits, key_of(*seeds, *frames, step), *temperature, *top_k, counts, best);
    if (blockIdx.x == 0 && threadIdx.x == 0) codes[step] = code;
    source[0] = tables + (step - 1) * *table_stride + (size_t)code * HIDDEN;
  };
  pass(Rows<2>(), 1);
#pragma unroll 1
  for (int step = 2; step < STEPS; step++) pass(Rows<1>(), step);
}

#endif
