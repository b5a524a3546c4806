// What every file of the shim shares: handles, the guard around each call, small helpers.
//
// How a failure reaches Python:
//   1. pys_* enters guarded(), which clears this thread's message and marks the thread as "inside".
//   2. Upstream logs an error line, throws, or fails an assertion.
//        - error lines are remembered, because upstream often returns only NULL
//        - exceptions are caught here
//        - ggml_abort() calls on_ggml_abort (library.cpp), which throws assertion_failure when the
//          thread is inside; on any other thread (a worker) the process ends as it always did
//   3. guarded() stores the text and returns a status; Python's check() raises.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama-ext.h"
#include "llama.h"

#if defined(_WIN32)
#define PYS_EXPORT __declspec(dllexport)
#else
#define PYS_EXPORT __attribute__((visibility("default")))
#endif

#if !defined(_WIN32)
#pragma GCC visibility push(default)
#endif
extern "C" {
#include "pyspec_decl.h"
}
#if !defined(_WIN32)
#pragma GCC visibility pop
#endif

struct pys_model {
    llama_model * model;
    const llama_vocab * vocab;
    int32_t n_vocab;
};

namespace pys {

// Worker threads of the CPU backend that stay from one decode to the next. Contexts that compute in turns share them,
// so that none of them waits for work, which takes a core, while another computes.
class workers {
public:
    workers() = default;
    ~workers();
    workers(const workers &) = delete;
    workers & operator=(const workers &) = delete;

    // Takes care that there are enough for this many threads, the caller included; alone it needs none.
    void reach(int32_t n_threads);

    // While it lives, a context has the threads for itself.
    class lease {
    public:
        lease(workers & lender, llama_context * context);
        ~lease();
        lease(const lease &) = delete;
        lease & operator=(const lease &) = delete;

    private:
        std::lock_guard<std::mutex> alone_;
        workers & lender_;
    };

private:
    std::mutex busy_;
    std::vector<ggml_threadpool_t> pools_; // the last one works; ggml may still look at the others, which sleep
    int32_t n_threads_ = 1;
};

} // namespace pys

struct pys_context {
    llama_context * ctx = nullptr;
    llama_batch_ext * batch = nullptr;
    llama_memory_t memory = nullptr; // null for models without memory
    int32_t n_vocab = 0;
    int32_t n_rows = 0;    // logits rows of the last decode
    int32_t n_entries = 0; // entries of the last decode
    std::vector<bool> keeps_layer;
    int32_t keeps_next_n = 0;
    bool keeps_output_states = false;
    std::map<llama_seq_id, llama_sampler *> selectors; // top-k chains that run on the device
    std::atomic<int32_t> abort_requested{0};
    std::shared_ptr<pys::workers> workers;
};

namespace pys {

struct assertion_failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The message of this thread's last failure.
std::string & last_error();

// Error lines that upstream logged since the call began.
std::string & logged_errors();

// True once the process is ending: computations stop, and call_scope never gives a thread back to Python.
bool leaving();

// Marks the thread as inside a guarded call.
struct call_scope {
    call_scope();
    ~call_scope();
    call_scope(const call_scope &) = delete;
    call_scope & operator=(const call_scope &) = delete;
};
bool inside_call();
// True once an assertion failed since the call began, even if upstream swallowed the exception.
bool & assertion_seen();

inline int32_t fail(int32_t status, const std::string & message) {
    last_error() = message;
    const std::string & logged = logged_errors();
    if (!logged.empty()) {
        last_error() += message.empty() ? logged : ": " + logged;
    }
    return assertion_seen() ? static_cast<int32_t>(PYS_ERR_ASSERT) : status;
}

template <typename Body> int32_t guarded(Body && body) noexcept {
    const call_scope scope;
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return fail(PYS_ERR_OUT_OF_MEMORY, "out of memory");
    } catch (const assertion_failure & error) {
        return fail(PYS_ERR_ASSERT, error.what());
    } catch (const std::exception & error) {
        return fail(PYS_ERR_EXCEPTION, error.what());
    } catch (...) {
        return fail(PYS_ERR_EXCEPTION, "unknown C++ exception");
    }
}

// A logits row of the last decode, [n_vocab]; null when there is none.
const float * logits_row(pys_context * context, int32_t row);

// The token with the largest logit, the lowest id among equals; -1 when none is a number above -inf.
int32_t best_token(const float * logits, int32_t n_vocab);

// The k largest logits of a row, best first, lowest id first among equals; returns how many there are.
int32_t top_k(pys_context * context, int32_t row, int32_t k, int32_t * tokens, float * logits);

// Moves the weights to large pages, where only a CPU computes, the system has such pages, and the weights are at most
// so many bytes. Asks between pieces whether to go on, and returns false if not.
bool use_large_pages(const llama_model * model, uint64_t budget, const std::function<bool()> & goes_on);

// Copies text into the caller's buffer; see "text" results in pyspec_decl.h.
int32_t copy_text(const char * text, size_t size, char * buffer, int32_t capacity, int32_t * length);

} // namespace pys
