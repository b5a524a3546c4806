// llama.cpp's log lines, queued until Python asks for them.
//
// Lines come from any thread, also from inside calls that hold no GIL, so nothing here calls Python.
// The queue is bounded: a process that never looks at its log must not grow.

#include <deque>
#include <mutex>

#include "shim.hpp"

namespace {

constexpr size_t max_lines = 4096;

struct line {
    int32_t level;
    std::string text;
};

std::mutex mutex;
std::deque<line> lines;
line unfinished{GGML_LOG_LEVEL_INFO, ""};
std::atomic<int32_t> threshold{GGML_LOG_LEVEL_INFO};
std::atomic<int32_t> pending{0};
static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t), "Python reads the counter as a plain int32");

void push(line && finished) {
    if (finished.level == GGML_LOG_LEVEL_ERROR && pys::inside_call()) {
        std::string & errors = pys::logged_errors();
        errors += errors.empty() ? finished.text : "; " + finished.text;
    }
    if (finished.level < threshold.load(std::memory_order_relaxed)) {
        return;
    }
    if (lines.size() == max_lines) {
        lines.pop_front();
    }
    lines.push_back(std::move(finished));
    pending.store(static_cast<int32_t>(lines.size()), std::memory_order_release);
}

// Upstream writes a line in one or several pieces; pieces after the first have the level CONT.
void on_log(enum ggml_log_level level, const char * text, void * /*user_data*/) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (level != GGML_LOG_LEVEL_CONT) {
        if (!unfinished.text.empty()) {
            push(std::move(unfinished));
        }
        unfinished = {level, ""};
    }
    for (const char * c = text; *c != '\0'; ++c) {
        if (*c != '\n') {
            unfinished.text += *c;
        } else if (!unfinished.text.empty()) {
            push({unfinished.level, std::move(unfinished.text)});
            unfinished.text.clear();
        }
    }
}

} // namespace

namespace pys {
void install_log(); // declared again by its one caller, library.cpp
void install_log() { llama_log_set(on_log, nullptr); }
} // namespace pys

const int32_t * pys_log_pending(void) { return reinterpret_cast<const int32_t *>(&pending); }

void pys_log_threshold(int32_t level) { threshold.store(level, std::memory_order_relaxed); }

int32_t pys_log_pop(char * buffer, int32_t capacity, int32_t * length, int32_t * level) {
    return pys::guarded([&]() -> int32_t {
        const std::lock_guard<std::mutex> lock(mutex);
        *length = -1;
        if (lines.empty()) {
            return PYS_OK;
        }
        const line & first = lines.front();
        *level = first.level;
        const size_t size = std::min(first.text.size(), static_cast<size_t>(capacity)); // a log line may be cut
        const int32_t status = pys::copy_text(first.text.data(), size, buffer, capacity, length);
        lines.pop_front();
        pending.store(static_cast<int32_t>(lines.size()), std::memory_order_release);
        return status;
    });
}
