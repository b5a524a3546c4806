// The worker threads of the CPU backend.

#include "ggml-cpu.h"
#include "shim.hpp"

namespace {

// How long a worker that has nothing to do looks for more before it sleeps, in units of 131,072 looks: some
// milliseconds. That covers what happens between two decodes, and waking takes longer than much of that.
constexpr uint32_t patience = 1;

// From the CPU backend, which may be a module that was loaded.
template <typename Function> Function * cpu_function(const char * name) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    return reinterpret_cast<Function *>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name));
}

} // namespace

namespace pys {

void workers::reach(int32_t n_threads) {
    const std::lock_guard<std::mutex> alone(busy_);
    if (n_threads <= n_threads_) {
        return;
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll = patience;
    pools_.reserve(pools_.size() + 1);
    pools_.push_back(cpu_function<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(&params));
    n_threads_ = n_threads;
}

workers::lease::lease(workers & lender, llama_context * context) : alone_(lender.busy_), lender_(lender) {
    llama_attach_threadpool(context, lender.pools_.empty() ? nullptr : lender.pools_.back(), nullptr);
}

workers::lease::~lease() {
    if (assertion_seen()) {
        lender_.pools_.clear(); // they wait for the thread that left; without any, ggml makes new ones for each decode
    }
}

workers::~workers() {
    for (ggml_threadpool_t pool : pools_) {
        cpu_function<decltype(ggml_threadpool_free)>("ggml_threadpool_free")(pool);
    }
}

} // namespace pys
