/* Which algorithm does cuBLASLt choose? Its heuristic is asked, nothing runs.
 *
 *   cc -O2 notes/dense/choose.c -o choose -lcublasLt -lcudart
 *   ./choose DTYPE M,M,… FROM,TO,STEP K,K,… > choice.txt        (of n: from, to, step)
 *
 * Prints a line "M K A A A …" for every m and k, with an index for every n; then
 * "configs", and what each index stands for: id, tile, split of k, reduction,
 * swizzle, custom option, stages, inner shape, cluster. */
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ATTRIBUTES = 9, MAX_CONFIGS = 20000 };

static const struct {
    cublasLtMatmulAlgoConfigAttributes_t name;
    size_t bytes;
} attributes[N_ATTRIBUTES] = {
    { CUBLASLT_ALGO_CONFIG_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_TILE_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4 },
    { CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4 },
    { CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4 },
    { CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4 },
    { CUBLASLT_ALGO_CONFIG_STAGES_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2 },
    { CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2 },
};

static int configs[MAX_CONFIGS][N_ATTRIBUTES];
static int n_configs;

static int index_of(const cublasLtMatmulAlgo_t *algo)
{
    int values[N_ATTRIBUTES] = { 0 };
    size_t written;
    for (int i = 0; i < N_ATTRIBUTES; i++)
        cublasLtMatmulAlgoConfigGetAttribute(algo, attributes[i].name, &values[i],
                                             attributes[i].bytes, &written);
    for (int i = 0; i < n_configs; i++)
        if (memcmp(configs[i], values, sizeof values) == 0)
            return i;
    if (n_configs == MAX_CONFIGS)
        return -1;
    memcpy(configs[n_configs], values, sizeof values);
    return n_configs++;
}

static int list(char *text, long *out, int max)
{
    int n = 0;
    for (char *part = strtok(text, ","); part && n < max; part = strtok(NULL, ","))
        out[n++] = atol(part);
    return n;
}

int main(int argc, char **argv)
{
    long m[64], n[3], k[4096];
    if (argc != 5)
        return 2;
    int n_m = list(argv[2], m, 64), n_n = list(argv[3], n, 3), n_k = list(argv[4], k, 4096);
    int is_f8 = strcmp(argv[1], "F8_E4M3") == 0;
    cudaDataType_t out = strcmp(argv[1], "F16") == 0 ? CUDA_R_16F : CUDA_R_16BF;
    cudaDataType_t in = is_f8 ? CUDA_R_8F_E4M3 : out;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t matmul;
    cublasLtMatmulPreference_t preference;
    cublasOperation_t transpose = CUBLAS_OP_T;
    size_t workspace_bytes = (size_t)32 << 20;
    uint32_t alignment_bytes = 256;
    if (n_n != 3 || cublasLtCreate(&lt) ||
        cublasLtMatmulDescCreate(&matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
        cublasLtMatmulPreferenceCreate(&preference))
        return 1;
    cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                   sizeof transpose);
    if (is_f8) {
        void *scale;
        cudaMalloc(&scale, sizeof(float));
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale,
                                       sizeof scale);
        cublasLtMatmulDescSetAttribute(matmul, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale,
                                       sizeof scale);
    }
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace_bytes, sizeof workspace_bytes);
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        cublasLtMatmulPreferenceSetAttribute(preference, (cublasLtMatmulPreferenceAttributes_t)i,
                                             &alignment_bytes, sizeof alignment_bytes);
    for (int a = 0; a < n_m * n_k; a++) {
        long rows = m[a / n_k], depth = k[a % n_k];
        printf("%ld %ld", rows, depth);
        for (long width = n[0]; width <= n[1]; width += n[2]) {
            cublasLtMatrixLayout_t w, x, y;
            cublasLtMatmulHeuristicResult_t result = { 0 };
            int found = 0;
            cublasLtMatrixLayoutCreate(&w, in, (uint64_t)depth, (uint64_t)width, depth);
            cublasLtMatrixLayoutCreate(&x, in, (uint64_t)depth, (uint64_t)rows, depth);
            cublasLtMatrixLayoutCreate(&y, out, (uint64_t)width, (uint64_t)rows, width);
            cublasLtMatmulAlgoGetHeuristic(lt, matmul, w, x, y, y, preference, 1, &result, &found);
            printf(" %d", found ? index_of(&result.algo) : -1);
            cublasLtMatrixLayoutDestroy(w);
            cublasLtMatrixLayoutDestroy(x);
            cublasLtMatrixLayoutDestroy(y);
        }
        printf("\n");
    }
    printf("configs\n");
    for (int i = 0; i < n_configs; i++) {
        for (int j = 0; j < N_ATTRIBUTES; j++)
            printf("%d ", configs[i][j]);
        printf("\n");
    }
    return 0;
}
