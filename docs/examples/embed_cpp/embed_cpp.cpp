// A program in C++ that links libmp_core and needs no Python: a layer with int8 weights, which are quantized at start.
// Inputs are quantized row by row during the product. It writes the result, float32, to standard output.
#include <mp_core.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

void check(int status) {
    if (status != MP_CORE_OK) throw std::runtime_error(mp_core_status_text(status));
}

// Return memory that is aligned to a cache line.
std::unique_ptr<void, decltype(&std::free)> allocate(ptrdiff_t bytes) {
    if (bytes < 0) throw std::runtime_error(mp_core_status_text(MP_CORE_INVALID));
    void *block = std::aligned_alloc(64, (static_cast<size_t>(bytes) / 64 + 1) * 64);
    if (!block) throw std::bad_alloc();
    return {block, &std::free};
}

class Linear {
  public:
    // Weights are (k, n), row-major; each column gets a scale.
    Linear(std::vector<float> weights, ptrdiff_t k, ptrdiff_t n)
        : k_(k), n_(n), scale_(static_cast<size_t>(n)), packed_(allocate(mp_core_packed_bytes(MP_CORE_INT8, k, n))) {
        std::vector<int8_t> codes(weights.size());
        mp_core_quantization q{};
        q.size = sizeof(q), q.rows = k, q.cols = n, q.x_type = MP_CORE_FLOAT32, q.q_type = MP_CORE_INT8;
        q.x = weights.data(), q.q = codes.data(), q.scales = MP_CORE_COLUMN_SCALES, q.scale = scale_.data();
        check(mp_core_quantize(&q, 1));
        check(mp_core_pack(MP_CORE_INT8, k, n, codes.data(), n, 1, packed_.get(), 1));
    }

    std::vector<float> operator()(const std::vector<float> &x, int threads) const {
        const ptrdiff_t m = k_ ? static_cast<ptrdiff_t>(x.size()) / k_ : 0;
        std::vector<float> out(static_cast<size_t>(m * n_));
        mp_core_product p{};
        p.size = sizeof(p), p.m = m, p.n = n_, p.k = k_;
        p.a_type = MP_CORE_FLOAT32, p.b_type = MP_CORE_INT8, p.out_type = MP_CORE_FLOAT32;
        p.a = x.data(), p.lda = k_, p.packed = packed_.get(), p.b_scale = scale_.data(), p.quantize_a = 1;
        p.out = out.data(), p.ldo = n_;
        auto scratch = allocate(mp_core_product_scratch(&p, threads));
        check(mp_core_multiply(&p, scratch.get(), threads));
        return out;
    }

  private:
    ptrdiff_t k_, n_;
    std::vector<float> scale_;
    std::unique_ptr<void, decltype(&std::free)> packed_;
};

std::vector<float> read(size_t count) {
    std::vector<float> values(count);
    if (std::fread(values.data(), sizeof(float), count, stdin) != count) throw std::runtime_error("standard input is too short");
    return values;
}

}  // namespace

// embed_cpp M K N THREADS: standard input is x (M, K), then the weights (K, N), as float32.
int main(int count, char **arguments) try {
    if (count != 5) throw std::runtime_error("give M K N THREADS");
    const size_t m = std::strtoul(arguments[1], nullptr, 10), k = std::strtoul(arguments[2], nullptr, 10);
    const size_t n = std::strtoul(arguments[3], nullptr, 10);
    const std::vector<float> x = read(m * k);
    const Linear linear(read(k * n), static_cast<ptrdiff_t>(k), static_cast<ptrdiff_t>(n));
    const std::vector<float> out = linear(x, std::atoi(arguments[4]));
    std::fprintf(stderr, "mp_core %s, %s\n", mp_core_version(), mp_core_isa());
    return std::fwrite(out.data(), sizeof(float), out.size(), stdout) == out.size() ? 0 : 1;
} catch (const std::exception &error) {
    std::fprintf(stderr, "embed_cpp: %s\n", error.what());
    return 1;
}
