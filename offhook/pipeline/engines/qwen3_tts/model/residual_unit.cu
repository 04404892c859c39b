// A residual unit of the codec in one launch on a Hopper GPU (sm_90a): a convolution of 7 taps, a
// snake, one of one tap, the sum with what came in, the next unit's snake. cuda_residual_unit.py
// defines CHANNELS, which is 96 or 192.
//
// The left factor of a product is rows of x in shared memory. They lie there in columns: 16 bytes
// of every row, then the next 16 of every row. So the rows that a tap sees are the same ones at an
// address a few rows further, and one copy serves all taps. The weights lie there likewise, as
// `pack_weights` puts them. Their outputs are in an order that gives a thread 8 neighbouring
// channels of a row at a time: channel 32 * q + 8 * t + i is column 8 * (4 * q + i / 2) + 2 * t +
// i % 2 of a product, for thread t of the four that have a row. The first product's columns are the
// second's inputs, as they come.
//
// Hardly any shared memory is left to cache what the compiler spills: a reload takes hundreds of
// cycles. Hence the care for registers.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define TAPS 7
#define ROWS 128                   // of a tile
#define PARAMETERS (6 * CHANNELS)  // bias, rate, depth of the first convolution, of the second
#define GROUP 128                  // threads of a warpgroup, which multiplies 64 rows
#define FULL ~0u

// --- numbers ---

__device__ __forceinline__ float low(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high(u32 two) { return __uint_as_float(two & 0xffff0000u); }

__device__ __forceinline__ u32 narrow(float low, float high) {
  u32 two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

// x + sin(x * rate)^2 * depth, with the sine that the hardware has.
__device__ __forceinline__ float snake(float x, float rate, float depth) {
  float sine = __sinf(x * rate);
  return fmaf(sine * sine, depth, x);
}

// Of 8 neighbouring channels.
struct Eight {
  float of[8];
};

__device__ __forceinline__ Eight eight(const float* from) {
  float4 a = *(const float4*)from, b = *((const float4*)from + 1);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

__device__ __forceinline__ uint4 read(const u16* from) {
  uint4 y;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(y.x), "=r"(y.y), "=r"(y.z), "=r"(y.w)
               : "l"(from));
  return y;
}

// --- shared memory, copies and barriers ---

__device__ __forceinline__ u32 shared_address(const void* at) {
  u32 y;
  asm("{.reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t;}" : "=r"(y) : "l"(at));
  return y;
}

// Begins to copy 16 bytes; zeros if they are not real.
__device__ __forceinline__ void copy_16(u32 to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void fetch_to_l2(const void* from, int bytes) {
  if (bytes > 0)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

// Waits until the tensor cores can read what this thread copied.
__device__ __forceinline__ void finish_copies() {
  asm volatile("cp.async.wait_all;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// Waits for `threads` threads at one of the barriers.
__device__ __forceinline__ void meet(int which, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

// --- products ---

// The descriptor of a matrix in shared memory with columns of `pitch` rows.
__device__ __forceinline__ u64 matrix(u32 at, u32 pitch) {
  return (at >> 4) | (u64)pitch << 16 | (u64)8 << 32;
}

#define D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(d, i) D4(d, i), D4(d, i + 4), D4(d, i + 8), D4(d, i + 12)

// Adds to d, begun by a warpgroup for its 64 rows: a * b over 16 inputs.

#if CHANNELS == 96
__device__ __forceinline__ void multiply(float (&d)[48], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, 1, 1, 1, 0, 0;"
      : D16(d, 0), D16(d, 16), D16(d, 32)
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void multiply(float (&d)[48], const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, 1, 1, 1, 0;"
      : D16(d, 0), D16(d, 16), D16(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#else
__device__ __forceinline__ void multiply(float (&d)[96], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, 1, 1, 1, 0, 0;"
      : D16(d, 0), D16(d, 16), D16(d, 32), D16(d, 48), D16(d, 64), D16(d, 80)
      : "l"(a), "l"(b));
}

__device__ __forceinline__ void multiply(float (&d)[32], const u32* a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : D16(d, 0), D16(d, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#endif

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving what uses d across this.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// --- rows ---

struct Call {
  const u16* x;    // padded: of each stream rows + (TAPS - 1) * dilation
  const u16* add;  // packed
  u16* kept;       // packed, or null
  u16* out;        // padded: of each stream out_rows
  int streams, rows, out_rows, dilation;
  __device__ __forceinline__ int x_rows() const { return rows + (TAPS - 1) * dilation; }
};

// ROWS rows of one stream, from `start` of its new ones; fewer at the end.
struct Tile {
  int number, start;
};

__device__ __forceinline__ Tile tile_of(const Call& call, int index) {
  int each = (call.rows + ROWS - 1) / ROWS;
  int number = index / each;
  return {number, (index - number * each) * ROWS};
}

// Begins to copy WIDTH channels of the rows of a tile and of those before it that it looks back on,
// `count` together, zeros for rows past the stream's last. This is one of `warps` warps.
template <int WIDTH>
__device__ __forceinline__ void copy_rows(u32 to, const Call& call, const Tile& tile, int channel,
                                          int count, int warp, int warps) {
  int lane = threadIdx.x & 31;
  int first = lane >> 3;
  int left = call.x_rows() - tile.start;
  const u16* x = call.x + ((i64)tile.number * call.x_rows() + tile.start) * CHANNELS + channel +
                 first * 8;
#pragma unroll 1
  for (int row = warp * 8 + (lane & 7); row < count; row += warps * 8) {
    bool real = row < left;
    const u16* from = x + (real ? row * CHANNELS : 0);
    u32 there = to + (first * count + row) * 16;
#pragma unroll
    for (int i = 0; i < WIDTH / 32; i++) copy_16(there + i * 4 * count * 16, from + i * 32, real);
  }
}

// Where a row of a tile is.
__device__ __forceinline__ i64 packed_row(const Call& call, const Tile& tile, int row) {
  return ((i64)tile.number * call.rows + tile.start + row) * CHANNELS;
}

__device__ __forceinline__ i64 out_row(const Call& call, const Tile& tile, int row) {
  int before = call.out_rows - call.rows;
  return ((i64)tile.number * call.out_rows + before + tile.start + row) * CHANNELS;
}

// Stores 8 neighbouring channels of one of a thread's two rows, and their snake.
template <int N>
__device__ __forceinline__ void put(const float (&sum)[N], int q, int half, const Eight& rate,
                                    const Eight& depth, u16* kept, u16* out) {
  float y[8];
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = sum[16 * q + 4 * (i / 2) + 2 * half + i % 2];
  if (kept) {
    *(uint4*)kept = make_uint4(narrow(y[0], y[1]), narrow(y[2], y[3]), narrow(y[4], y[5]),
                               narrow(y[6], y[7]));
  }
#pragma unroll
  for (int i = 0; i < 8; i++) y[i] = snake(y[i], rate.of[i], depth.of[i]);
  *(uint4*)out = make_uint4(narrow(y[0], y[1]), narrow(y[2], y[3]), narrow(y[4], y[5]),
                            narrow(y[6], y[7]));
}

// The snake of 32 channels of the sums, rounded, as the left factor of the next product: it is in
// the same threads.
template <int N>
__device__ __forceinline__ void turn(const float (&sum)[N], u32 (&y)[N / 2], int q,
                                     const Eight& rate, const Eight& depth) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int at = 16 * q + 2 * i + 2 * half;
      y[8 * q + i + half] = narrow(snake(sum[at], rate.of[i], depth.of[i]),
                                   snake(sum[at + 1], rate.of[i + 1], depth.of[i + 1]));
    }
  }
}

// The bias as the beginning of a sum.
template <int N>
__device__ __forceinline__ void start_sum(float (&sum)[N], const float* bias) {
#pragma unroll
  for (int q = 0; q < N / 16; q++) {
    Eight b = eight(bias + 32 * q);
#pragma unroll
    for (int i = 0; i < 16; i++) sum[16 * q + i] = b.of[i / 4 * 2 + i % 2];
  }
}

// Reads what is added to a thread's channels of a row and of the one 8 further.
template <int N>
__device__ __forceinline__ void read_added(uint4 (&added)[N], const Call& call, const Tile& tile,
                                           int row, int channel) {
  const u16* from = call.add + packed_row(call, tile, row) + channel;
#pragma unroll
  for (int i = 0; i < N; i++) {
    bool real = tile.start + row + i % 2 * 8 < call.rows;
    added[i] = real ? read(from + i % 2 * 8 * CHANNELS + i / 2 * 32) : uint4{};
  }
}

// Adds 8 neighbouring channels of a row.
template <int N>
__device__ __forceinline__ void increase(float (&sum)[N], int q, int half, const uint4& by) {
  u32 two[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    sum[16 * q + 4 * i + 2 * half] += low(two[i]);
    sum[16 * q + 4 * i + 2 * half + 1] += high(two[i]);
  }
}

#if CHANNELS == 96

// --- 96 channels: all weights stay in shared memory ---
//
// A block takes tile after tile. Two warpgroups work at one; while the tensor cores multiply it,
// the other two copy the rows of their next and store what comes out of theirs.

#define CHUNKS (CHANNELS / 8)  // of 16 bytes in a row
#define PAIR (2 * GROUP)
#define WEIGHTS ((TAPS + 1) * CHANNELS * CHANNELS * 2)

// Brings a tile's rows into the L2 cache.
__device__ __forceinline__ void fetch_tile(const Call& call, const Tile& tile) {
  int rows = min(ROWS, call.rows - tile.start);
  fetch_to_l2(call.x + ((i64)tile.number * call.x_rows() + tile.start) * CHANNELS,
              (rows + (TAPS - 1) * call.dilation) * CHANNELS * 2);
  fetch_to_l2(call.add + packed_row(call, tile, 0), rows * CHANNELS * 2);
}

extern "C" __global__ void __launch_bounds__(2 * PAIR, 1)
    residual_unit(const u16* x, const u16* weights, const float* parameters, const u16* add,
                  u16* kept, u16* out, int streams, int rows, int out_rows, int dilation,
                  int keep) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Call call = {x, add, keep ? kept : nullptr, out, streams, rows, out_rows, dilation};
  int pair = __shfl_sync(FULL, threadIdx.x / PAIR, 0);
  int warp = __shfl_sync(FULL, threadIdx.x % PAIR / 32, 0);
  int lane = threadIdx.x & 31;
  int count = ROWS + (TAPS - 1) * dilation;
  u32 base = shared_address(memory);
  float* values = (float*)(memory + WEIGHTS);
  u32 seen = base + WEIGHTS + PARAMETERS * 4 + pair * count * CHANNELS * 2;

  for (int i = threadIdx.x; i < WEIGHTS / 16; i += 2 * PAIR)
    copy_16(base + i * 16, weights + i * 8, true);
  for (int i = threadIdx.x; i < PARAMETERS; i += 2 * PAIR) values[i] = parameters[i];
  int tiles = streams * ((rows + ROWS - 1) / ROWS);
  int index = blockIdx.x * 2 + pair;
  int step = gridDim.x * 2;
  __syncthreads();
  if (index < tiles)
    copy_rows<CHANNELS>(seen, call, tile_of(call, index), 0, count, warp, PAIR / 32);
  finish_copies();
  __syncthreads();

  u64 left = matrix(seen + warp / 4 * 64 * 16, count);
  u64 right = matrix(base, CHANNELS);
  values += 8 * (lane & 3);
  int channel = 8 * (lane & 3);
  int row = warp * 16 + (lane >> 2);
  for (; index < tiles; index += step) {
    bool more = index + step < tiles;
    float sum[48];
    start_sum(sum, values);
    pin(sum);
#pragma unroll 1
    for (int tap = 0; tap < TAPS; tap++) {
      begin_products();
#pragma unroll
      for (int k = 0; k < CHUNKS; k += 2)
        multiply(sum, left + (u32)(k * count + tap * dilation),
                 right + (tap * CHUNKS + k) * CHANNELS);
    }
    commit_products();
    if (more && threadIdx.x % PAIR == 0) fetch_tile(call, tile_of(call, index + step));
    wait_products<0>();
    pin(sum);
    meet(1 + pair, PAIR);
    if (more)
      copy_rows<CHANNELS>(seen, call, tile_of(call, index + step), 0, count, warp, PAIR / 32);
    u32 z[24];
#pragma unroll
    for (int q = 0; q < 3; q++)
      turn(sum, z, q, eight(values + CHANNELS + 32 * q), eight(values + 2 * CHANNELS + 32 * q));
    uint4 added[6];
    read_added(added, call, tile_of(call, index), row, channel);
    start_sum(sum, values + 3 * CHANNELS);
    pin(sum);
    begin_products();
#pragma unroll
    for (int k = 0; k < 12; k += 2)
      multiply(sum, z + 2 * k, right + (TAPS * CHUNKS + k) * CHANNELS);
    commit_products();
    wait_products<0>();
    pin(sum);
    finish_copies();  // Before anything is stored, or its fence would wait for that, too.
    const float* snakes = values + 4 * CHANNELS;
    Tile tile = tile_of(call, index);  // Only now, to spare registers.
    i64 packed = packed_row(call, tile, row) + channel;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (tile.start + row + 8 * half >= rows) continue;
      i64 to = out_row(call, tile, row + 8 * half) + channel;
#pragma unroll
      for (int q = 0; q < 3; q++) {
        increase(sum, q, half, added[2 * q + half]);
        put(sum, q, half, eight(snakes + 32 * q), eight(snakes + CHANNELS + 32 * q),
            keep ? kept + packed + half * 8 * CHANNELS + 32 * q : nullptr, out + to + 32 * q);
      }
    }
    meet(1 + pair, PAIR);
  }
}

#else

// --- 192 channels: the weights pass by ---
//
// Two warpgroups work at a tile each, with the same weights. A third feeds them: one warp copies
// weights into a ring of stages, each of 32 inputs and all outputs, and three copy rows, 96
// channels (a part) of a tile at a time. Barriers tell what is full and what is empty.

#define WORKERS 2
#define THREADS ((WORKERS + 1) * GROUP)
#define PARTS 2
#define CHUNKS 12        // of 16 bytes in a part of a row
#define STAGES 6
#define STAGE (32 * CHANNELS * 2)
#define CONV_STAGES (TAPS * CHANNELS / 32)
#define SECOND_STAGES (CHANNELS / 32)
#define BARRIERS 256     // bytes

// Their addresses.
struct Barriers {
  u32 base;
  __device__ u32 full(u32 stage) const { return base + 8 * stage; }
  __device__ u32 empty(u32 stage) const { return base + 8 * (STAGES + stage); }
  __device__ u32 rows_full(int group, u32 buffer) const {
    return base + 8 * (2 * STAGES + 2 * group + buffer);
  }
  __device__ u32 rows_empty(int group, u32 buffer) const {
    return base + 8 * (2 * STAGES + 2 * WORKERS + 2 * group + buffer);
  }
};

__device__ __forceinline__ void set_up(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A stage, and whether the ring was passed an odd number of times.
template <int LENGTH>
struct Place {
  u32 at = 0, round = 0;
  __device__ __forceinline__ void advance() {
    at++;
    if (at == LENGTH) at = 0, round ^= 1;
  }
};

__device__ __forceinline__ int tiles_of(const Call& call) {
  return call.streams * ((call.rows + ROWS - 1) / ROWS);
}

// A block's tile of a warpgroup; past the end, one without rows.
__device__ __forceinline__ Tile own_tile(const Call& call, int index, int group) {
  index = WORKERS * index + group;
  int last = tiles_of(call) - 1;
  Tile tile = tile_of(call, min(index, last));
  if (index > last) tile.start = call.rows;
  return tile;
}

__device__ __forceinline__ void feed_weights(const Call& call, const u16* weights, u32 stages,
                                             const Barriers& barriers, int turns) {
  Place<STAGES> place;
  for (int index = blockIdx.x; index < turns; index += gridDim.x) {
    for (int group = 0; group < WORKERS; group++) {
      Tile tile = own_tile(call, index, group);
      int rows = min(ROWS, call.rows - tile.start);
      fetch_to_l2(call.add + packed_row(call, tile, 0), rows * CHANNELS * 2);
    }
    // Those of the second product come twice, for either half of the rows.
    for (int i = 0; i < CONV_STAGES + 2 * SECOND_STAGES; i++, place.advance()) {
      int block = i < CONV_STAGES + SECOND_STAGES ? i : i - SECOND_STAGES;
      u32 full = barriers.full(place.at);
      wait(barriers.empty(place.at), place.round ^ 1);
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "n"(STAGE)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
          ::"r"(stages + place.at * STAGE),
          "l"(weights + block * (STAGE / 2)), "n"(STAGE), "r"(full)
          : "memory");
    }
  }
}

__device__ __forceinline__ void feed_rows(const Call& call, u32 seen, const Barriers& barriers,
                                          int turns, int warp) {
  int count = ROWS + (TAPS - 1) * call.dilation;
  u32 round = 1;
  for (int index = blockIdx.x; index < turns; index += gridDim.x, round ^= 1) {
    for (int part = 0; part < PARTS; part++) {
      for (int group = 0; group < WORKERS; group++) {
        Tile tile = own_tile(call, index, group);
        wait(barriers.rows_empty(group, part), round);
        copy_rows<96>(seen + (group * PARTS + part) * count * CHUNKS * 16, call, tile, part * 96,
                  count, warp, 3);
        finish_copies();
        arrive(barriers.rows_full(group, part));
      }
    }
  }
}

// Finishes 64 rows whose first product is y: the other half's are in registers, too.
__device__ __forceinline__ void finish(const Call& call, int index, int group,
                                       const float (&y)[96], const float* parameters, u32 stages,
                                       const Barriers& barriers, Place<STAGES>& place, int row,
                                       int channel) {
  u32 z[48];
#pragma unroll
  for (int q = 0; q < 6; q++)
    turn(y, z, q, eight(parameters + CHANNELS + 32 * q), eight(parameters + 2 * CHANNELS + 32 * q));
  Tile tile = own_tile(call, index, group);
  i64 packed = packed_row(call, tile, row) + channel;
  i64 to[2] = {out_row(call, tile, row) + channel, out_row(call, tile, row + 8) + channel};
  bool real[2] = {tile.start + row < call.rows, tile.start + row + 8 < call.rows};
#pragma unroll 1
  for (int third = 0; third < 3; third++) {
    uint4 added[4];
    read_added(added, call, tile, row, channel + third * 64);
    const float* values = parameters + 3 * CHANNELS + third * 64;
    float sum[32];
    start_sum(sum, values);
    pin(sum);
    u32 before = place.at;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u64 right = matrix(stages + place.at * STAGE, 64);
      wait(barriers.full(place.at), place.round);
      begin_products();
#pragma unroll
      for (int k = 0; k < 6; k++) multiply(sum, z + 4 * (6 * half + k), right + k * 2 * 64);
      if (!half) place.advance();
    }
    commit_products();
    wait_products<0>();
    pin(sum);
    if (threadIdx.x % 32 == 0) {
      arrive(barriers.empty(before));
      arrive(barriers.empty(place.at));
    }
    place.advance();
#pragma unroll
    for (int i = 0; i < 4; i++) increase(sum, i / 2, i % 2, added[i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int q = 0; q < 2; q++) {
        int there = third * 64 + 32 * q;
        if (real[half])
          put(sum, q, half, eight(values + CHANNELS + 32 * q),
              eight(values + 2 * CHANNELS + 32 * q),
              call.kept ? call.kept + packed + half * 8 * CHANNELS + there : nullptr,
              call.out + to[half] + there);
      }
    }
  }
}

__device__ __forceinline__ void work(const Call& call, const float* parameters, u32 stages,
                                     u32 seen, const Barriers& barriers, int turns, int group) {
  int lane = threadIdx.x & 31;
  int count = ROWS + (TAPS - 1) * call.dilation;
  int row = threadIdx.x % GROUP / 32 * 16 + (lane >> 2);
  int channel = 8 * (lane & 3);
  parameters += channel;
  Place<STAGES> place;
  u32 round = 0;
  for (int index = blockIdx.x; index < turns; index += gridDim.x, round ^= 1) {
    float y[2][96];
    start_sum(y[0], parameters);
#pragma unroll
    for (int i = 0; i < 96; i++) y[1][i] = y[0][i];
    pin(y[0]);
    pin(y[1]);
    for (int part = 0; part < PARTS; part++) {
      u64 left = matrix(seen + (group * PARTS + part) * count * CHUNKS * 16, count);
      u32 before = 0;
      wait(barriers.rows_full(group, part), round);
#pragma unroll 1
      for (int tap = 0; tap < TAPS; tap++) {
#pragma unroll
        for (int sub = 0; sub < 3; sub++) {
          u64 right = matrix(stages + place.at * STAGE, CHANNELS);
          wait(barriers.full(place.at), place.round);
          begin_products();
#pragma unroll
          for (int k = 0; k < 4; k += 2) {
            u64 rows = left + (u32)((4 * sub + k) * count + tap * call.dilation);
            multiply(y[0], rows, right + k * CHANNELS);
            multiply(y[1], rows + 64, right + k * CHANNELS);
          }
          commit_products();
          wait_products<1>();
          if (tap + sub && lane == 0) arrive(barriers.empty(before));
          before = place.at;
          place.advance();
        }
      }
      wait_products<0>();
      if (lane == 0) {
        arrive(barriers.empty(before));
        arrive(barriers.rows_empty(group, part));
      }
    }
    pin(y[0]);
    pin(y[1]);
    finish(call, index, group, y[0], parameters, stages, barriers, place, row, channel);
    finish(call, index, group, y[1], parameters, stages, barriers, place, row + 64, channel);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    residual_unit(const u16* x, const u16* weights, const float* parameters, const u16* add,
                  u16* kept, u16* out, int streams, int rows, int out_rows, int dilation,
                  int keep) {
  extern __shared__ __align__(128) unsigned char memory[];
  const Call call = {x, add, keep ? kept : nullptr, out, streams, rows, out_rows, dilation};
  u32 base = shared_address(memory);
  const Barriers barriers = {base};
  float* values = (float*)(memory + BARRIERS);
  for (int i = threadIdx.x; i < PARAMETERS; i += THREADS) values[i] = parameters[i];
  u32 stages = base + BARRIERS + PARAMETERS * 4, seen = stages + STAGES * STAGE;
  int turns = (tiles_of(call) + WORKERS - 1) / WORKERS;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      set_up(barriers.full(i), 1);
      set_up(barriers.empty(i), 4 * WORKERS);
    }
    for (int group = 0; group < WORKERS; group++) {
      for (int part = 0; part < PARTS; part++) {
        set_up(barriers.rows_full(group, part), 3 * 32);
        set_up(barriers.rows_empty(group, part), 4);
      }
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::
                     : "memory");
  }
  __syncthreads();
  int group = __shfl_sync(FULL, threadIdx.x / GROUP, 0);
  if (group == WORKERS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    int warp = threadIdx.x / 32 % 4;
    if (warp == 3) {
      if (threadIdx.x % 32 == 0) feed_weights(call, weights, stages, barriers, turns);
    } else {
      feed_rows(call, seen, barriers, turns, warp);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    work(call, values, stages, seen, barriers, turns, group);
  }
}

#endif
