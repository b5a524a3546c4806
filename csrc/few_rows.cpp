// Which kernel multiplies a few rows with quantised weights.
//
// Upstream's sgemm.cpp makes tiles of four rows by four columns where there is AVX512, and of four by two where there
// is not. With quantised weights both work on 256 bits, and for up to eight columns, as in a round with drafts, the
// smaller tiles were up to a third faster on an AMD processor with AVX512; with floats, and with more columns, the
// larger ones are (docs/decisions/0012). So that source is compiled twice: as it is, under another name, and here,
// without AVX512.

#define llamafile_sgemm sgemm_of_small_tiles
#include "llamafile/sgemm.cpp"
#undef llamafile_sgemm

extern "C" bool sgemm_of_large_tiles(const ggml_compute_params *, int64_t, int64_t, int64_t, const void *, int64_t,
                                     const void *, int64_t, void *, int64_t, int, int, int);

// Upstream's function, as ggml calls it: C[m, n] = A[m, k] B[k, n].
extern "C" bool llamafile_sgemm(const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * A,
                                int64_t lda, const void * B, int64_t ldb, void * C, int64_t ldc, int Atype, int Btype,
                                int Ctype) {
    constexpr int64_t most_columns = 8;
    static const bool small_is_faster = __builtin_cpu_is("amd") != 0;
    const bool small = small_is_faster && n <= most_columns && ggml_is_quantized(static_cast<ggml_type>(Atype));
    const auto sgemm = small ? sgemm_of_small_tiles : sgemm_of_large_tiles;
    return sgemm(params, m, n, k, A, lda, B, ldb, C, ldc, Atype, Btype, Ctype);
}
