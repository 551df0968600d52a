/* The order of channels. A step takes the input that explains most of the output that is
 * left. It has three kernels: one picks the input and brings its columns of rest and product
 * up to date, one multiplies product by its output (this reads all of product, and takes
 * nearly all the time), and one changes what is known of all inputs. */
#include "pass_algebra_kernels.h"
#include "pass_common.cuh"

namespace
{

constexpr int N_THREADS = GAC_CHANNELS_BLOCK, TOGETHER = GAC_CHANNELS_TOGETHER;

__device__ __forceinline__ double warp_sum_double(double x)
{
#pragma unroll
    for (int i = 16; i; i /= 2)
        x += __shfl_xor_sync(WHOLE_WARP, x, i);
    return x;
}

/* The sum over a block, in every thread. */
__device__ __forceinline__ double block_sum_double(double x)
{
    __shared__ double spare[N_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    x = warp_sum_double(x);
    if (lane == 0)
        spare[warp] = x;
    __syncthreads();
    return warp_sum_double(lane < N_THREADS / 32 ? spare[lane] : 0.0);
}

/* The greatest gain of a block and its input, the first one of equals, in every thread. */
__device__ __forceinline__ void block_best(double &gain, int &input)
{
    __shared__ double gains[N_THREADS / 32];
    __shared__ int inputs[N_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int turn = 0; turn < 2; turn++) {
#pragma unroll
        for (int i = 16; i; i /= 2) {
            const double other = __shfl_xor_sync(WHOLE_WARP, gain, i);
            const int other_input = __shfl_xor_sync(WHOLE_WARP, input, i);
            if (other > gain || (other == gain && other_input < input)) {
                gain = other;
                input = other_input;
            }
        }
        if (turn == 1)
            return;
        if (lane == 0) {
            gains[warp] = gain;
            inputs[warp] = input;
        }
        __syncthreads();
        gain = lane < N_THREADS / 32 ? gains[lane] : -2.0;
        input = lane < N_THREADS / 32 ? inputs[lane] : INT32_MAX;
    }
}

/* What input i explains; -1 if it is taken, 0 if that is no number. */
__device__ __forceinline__ double gain_of(double square, double diagonal, bool taken)
{
    const double gain = diagonal > 0 ? square / diagonal : 0;
    return taken ? -1 : gain >= 0 ? gain : 0;
}

/* Each block keeps the best of its inputs. */
__device__ __forceinline__ void keep_best(const gac_channels &c, double gain, int64_t i)
{
    int input = (int)i;
    block_best(gain, input);
    if (threadIdx.x == 0) {
        c.gains[blockIdx.x] = gain;
        c.best[blockIdx.x] = input;
    }
}

/* column and output: columns j of rest and product as they are now. Every block finds j. */
__global__ void __launch_bounds__(N_THREADS)
    gac_channels_pick_kernel(const gac_channels c, int n_blocks, int n_late)
{
    __shared__ double shares[TOGETHER];
    double gain = -2;
    int j = INT32_MAX;
    for (int b = threadIdx.x; b < n_blocks; b += N_THREADS)
        if (c.gains[b] > gain || (c.gains[b] == gain && c.best[b] < j)) {
            gain = c.gains[b];
            j = c.best[b];
        }
    block_best(gain, j);
    if (threadIdx.x < n_late)
        shares[threadIdx.x] = c.late_rest[threadIdx.x * c.n + j];
    __syncthreads();
    const int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x, o = i - c.n;
    if (i == 0)
        *c.chosen = j;
    if (i < c.n) {
        double sum = c.rest[j * c.n + i];
        for (int s = 0; s < n_late; s++)
            sum -= shares[s] * c.late_rest[s * c.n + i];
        c.column[i] = sum;
    } else if (o < c.n_out) {
        double sum = c.product[o * c.n + j];
        for (int s = 0; s < n_late; s++)
            sum -= shares[s] * c.late_product[s * c.n_out + o];
        c.output[o] = sum;
    }
}

/* The first n_late blocks: dots[s] = late_product[s] output. The others:
 * partial[split, i] = the part of product^T output that one split of the outputs gives. */
__global__ void __launch_bounds__(N_THREADS)
    gac_channels_overlap_kernel(const gac_channels c, int n_tiles, int n_late)
{
    const int block = (int)blockIdx.x - n_late;
    double sum = 0;
    if (block < 0) {
        const double *late = c.late_product + blockIdx.x * c.n_out;
        for (int64_t o = threadIdx.x; o < c.n_out; o += N_THREADS)
            sum += late[o] * c.output[o];
        sum = block_sum_double(sum);
        if (threadIdx.x == 0)
            c.dots[blockIdx.x] = sum;
        return;
    }
    const int split = block / n_tiles;
    const int64_t i = (int64_t)(block % n_tiles) * N_THREADS + threadIdx.x;
    const int64_t begin = c.n_out * split / c.n_splits, end = c.n_out * (split + 1) / c.n_splits;
    if (i >= c.n)
        return;
    const double *at = c.product + begin * c.n + i;
#pragma unroll 8
    for (int64_t o = begin; o < end; o++, at += c.n)
        sum += __ldcs(at) * c.output[o];
    c.partial[split * c.n + i] = sum;
}

/* product^T output for input i as it is now. */
__device__ __forceinline__ double overlap_of(const gac_channels &c, const double *dots, int n_late,
                                             int64_t i)
{
    double sum = 0;
    for (int split = 0; split < c.n_splits; split++)
        sum += c.partial[split * c.n + i];
    for (int s = 0; s < n_late; s++)
        sum -= dots[s] * c.late_rest[s * c.n + i];
    return sum;
}

/* The same for input j, by the first warp. */
__device__ __forceinline__ double overlap_of_chosen(const gac_channels &c, int n_late, int64_t j)
{
    const int lane = threadIdx.x;
    double sum = 0;
    if (lane < c.n_splits)
        sum = c.partial[lane * c.n + j];
    if (lane < n_late)
        sum -= c.dots[lane] * c.late_rest[lane * c.n + j];
    return warp_sum_double(sum);
}

/* Takes the input that was picked. */
__global__ void __launch_bounds__(N_THREADS)
    gac_channels_update_kernel(const gac_channels c, int64_t step, int n_late)
{
    __shared__ double dots[TOGETHER], shared_square;
    const int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x, j = *c.chosen;
    if (threadIdx.x < 32) {
        const double sum = overlap_of_chosen(c, n_late, j);
        if (threadIdx.x == 0)
            shared_square = sum;
    }
    if (threadIdx.x < n_late)
        dots[threadIdx.x] = c.dots[threadIdx.x];
    __syncthreads();
    const double square = shared_square, scale = fmax(c.column[j], 1e-300), root = sqrt(scale);
    if (i == 0) {
        c.order[step] = c.inputs ? c.inputs[j] : (int32_t)j;
        c.loss[step + 1] = fmax(c.loss[step] - square / scale, 0.0);
    }
    if (i < c.n_out)
        c.late_product[n_late * c.n_out + i] = c.output[i] / root;
    double gain = -1;
    if (i < c.n) {
        const double overlap = overlap_of(c, dots, n_late, i), share = c.column[i] / scale;
        const double now = c.squares[i] + share * (share * square - 2 * overlap);
        const double diagonal = c.diagonal[i] - share * c.column[i];
        if (i == j)
            c.taken[i] = 1;
        c.squares[i] = now;
        c.diagonal[i] = diagonal;
        c.late_rest[n_late * c.n + i] = c.column[i] / root;
        gain = gain_of(now, diagonal, i == j || c.taken[i]);
    }
    if (blockIdx.x < (c.n + N_THREADS - 1) / N_THREADS)
        keep_best(c, gain, i);
}

/* partial[0, split, i] and partial[1, split, i]: the parts of |column i of product|^2 and of
 * product[:, i] w[:, i] that one split of the outputs gives. */
__global__ void __launch_bounds__(N_THREADS)
    gac_channels_columns_kernel(const gac_channels c, int n_tiles)
{
    const int split = (int)blockIdx.x / n_tiles;
    const int64_t i = (int64_t)(blockIdx.x % n_tiles) * N_THREADS + threadIdx.x;
    const int64_t begin = c.n_out * split / c.n_splits, end = c.n_out * (split + 1) / c.n_splits;
    double square = 0, left = 0;
    if (i >= c.n)
        return;
#pragma unroll 4
    for (int64_t o = begin; o < end; o++) {
        const double v = __ldcs(c.product + o * c.n + i);
        square += v * v;
        left += v * __ldcs(c.w + o * c.n + i);
    }
    c.partial[split * c.n + i] = square;
    c.partial[(c.n_splits + split) * c.n + i] = left;
}

__global__ void __launch_bounds__(N_THREADS) gac_channels_measure_kernel(const gac_channels c)
{
    const int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x;
    double square = 0, left = 0, gain = -1;
    if (i < c.n) {
        const double diagonal = c.rest[i * c.n + i];
        for (int split = 0; split < c.n_splits; split++) {
            square += c.partial[split * c.n + i];
            left += c.partial[(c.n_splits + split) * c.n + i];
        }
        c.squares[i] = square;
        c.diagonal[i] = diagonal;
        gain = gain_of(square, diagonal, c.taken[i]);
    }
    left = block_sum_double(left);
    if (threadIdx.x == 0)
        c.lefts[blockIdx.x] = left;
    keep_best(c, gain, i);
}

__global__ void __launch_bounds__(N_THREADS)
    gac_channels_left_kernel(const double *lefts, int n_blocks, double *loss)
{
    double sum = 0;
    for (int b = threadIdx.x; b < n_blocks; b += N_THREADS)
        sum += lefts[b];
    sum = block_sum_double(sum);
    if (threadIdx.x == 0)
        *loss = fmax(sum, 0.0);
}

unsigned count_blocks(int64_t n)
{
    return (unsigned)((n + N_THREADS - 1) / N_THREADS);
}

} /* namespace */

extern "C" int64_t gac_channels_blocks(int64_t n)
{
    return count_blocks(n);
}

extern "C" gac_status gac_channels_measure_launch(const gac_channels *c, int64_t step,
                                                  cudaStream_t stream, gac_error *err)
{
    const unsigned n_tiles = count_blocks(c->n);
    gac_channels_columns_kernel<<<n_tiles *(unsigned)c->n_splits, N_THREADS, 0, stream>>>(
        *c, (int)n_tiles);
    gac_channels_measure_kernel<<<n_tiles, N_THREADS, 0, stream>>>(*c);
    gac_channels_left_kernel<<<1, N_THREADS, 0, stream>>>(c->lefts, (int)n_tiles, c->loss + step);
    return launch_status(cudaGetLastError(), "order of channels", err);
}

extern "C" gac_status gac_channels_take_launch(const gac_channels *c, int64_t step, int n_late,
                                               cudaStream_t stream, gac_error *err)
{
    const unsigned n_tiles = count_blocks(c->n);
    const int64_t longer = c->n > c->n_out ? c->n : c->n_out;
    gac_channels_pick_kernel<<<count_blocks(c->n + c->n_out), N_THREADS, 0, stream>>>(
        *c, (int)n_tiles, n_late);
    gac_channels_overlap_kernel<<<(unsigned)n_late + n_tiles *(unsigned)c->n_splits, N_THREADS, 0,
                                  stream>>>(*c, (int)n_tiles, n_late);
    gac_channels_update_kernel<<<count_blocks(longer), N_THREADS, 0, stream>>>(*c, step, n_late);
    return launch_status(cudaGetLastError(), "order of channels", err);
}
