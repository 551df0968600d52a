#include <gac/timing.h>

#include <stdio.h>
#include <string.h>

/* A kernel belongs to the first row whose text occurs in its name, mangled or
 * not, in any case. The order matters: attention kernels mention cutlass,
 * copies are elementwise kernels, and a split nvjet kernel is still nvjet. */
static const struct {
    const char *part;
    const char *family;
} families[] = {
    { "gac_flash", "gac-flash" },
    { "gac_pad", "gac-pad" },
    { "nvjet", "nvjet" },
    { "flash_fprop", "cudnn-flash" },
    { "native_sdpa", "cudnn-flash" },
    { "flash_fwd_combine", "fa2" },
    { "flash_fwd", "fa2" }, /* flash_fwd_kernel, flash_fwd_splitkv_kernel */
    { "flashattnfwdsm90", "fa3" },
    { "fmha_cutlass", "mem-efficient" },
    { "mem_eff", "mem-efficient" },
    { "attentionkernel", "mem-efficient" },
    { "splitkreduce", "splitk" },
    { "splitk_reduce", "splitk" },
    { "_align16", "cutlass-align16" },
    { "_align8", "cutlass-align8" },
    { "_align4", "cutlass-align4" },
    { "_align2", "cutlass-align2" },
    { "_align1", "cutlass-align1" },
    { "cutlass", "cutlass" },
    { "_xmma_", "xmma" }, /* sm80_xmma_gemm_…, sm90_xmma_gemm_… */
    { "ampere_", "xmma" },
    { "turing_", "xmma" },
    { "volta_", "xmma" },
    { "dot_kernel", "dot" }, /* before gemv: its parameters are named cublasGemv… */
    { "reduce_1block", "dot" },
    { "gemv", "gemv" }, /* gemv2T_kernel, gemvNSP_kernel, gemvx::kernel */
    { "softmax", "softmax" },
    { "fillfunctor", "fill" },
    { "fill_kernel", "fill" },
    { "gac_fill", "fill" },
    { "memset", "fill" },
    { "copy", "copy" }, /* direct_copy_kernel, CatArrayBatchedCopy, gac_copy */
    { "memcpy", "copy" },
    { "transpose", "transpose" },
    { "elementwise", "elementwise" }, /* also vectorized and unrolled ones */
    { "reduce_kernel", "reduce" },
    { "gac_", "gac" },
    { "cudnn", "cudnn" },
    { "gemm", "gemm" }, /* gemmSN_TN_kernel, sgemm_largek, … */
};

void gac_kernel_short_name(const char *name, char *out, size_t size)
{
    static const char wrapper[] = "cutlass::Kernel", nameless[] = "(anonymous namespace)::";
    if (strncmp(name, "void ", 5) == 0)
        name += 5;
    if (strncmp(name, nameless, sizeof nameless - 1) == 0)
        name += sizeof nameless - 1;
    const char *arguments = strchr(name, '<');
    if (arguments && strncmp(name, wrapper, sizeof wrapper - 1) == 0)
        name = arguments + 1; /* a generic wrapper's template argument names the actual kernel */
    size_t n = strcspn(name, "<>(,");
    snprintf(out, size, "%.*s", n < size ? (int)n : (int)size - 1, name);
    for (char *c = out; *c; c++) /* names are printed to terminals */
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
            *c = '?';
}

const char *gac_kernel_family(const char *name)
{
    for (size_t i = 0; name && i < sizeof families / sizeof *families; i++) {
        if (strcasestr(name, families[i].part))
            return families[i].family;
    }
    return "other";
}
