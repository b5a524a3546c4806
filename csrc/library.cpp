// The library itself: identity, initialisation, devices, assertions.

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "ggml-backend.h"
#include "shim.hpp"

namespace {

std::atomic<int32_t> calls_running{0};
std::atomic<bool> is_leaving{false};
std::thread::id leaver; // the thread that ends the process; its calls go on

// A thread that came from Python must not return to an interpreter that is being taken down.
void park_when_leaving() {
    while (is_leaving.load() && std::this_thread::get_id() != leaver) {
        std::this_thread::sleep_for(std::chrono::hours(1));
    }
}

thread_local int call_depth = 0;
thread_local bool assertion_flag = false;
thread_local std::string error_text;
thread_local std::string error_lines;

void on_ggml_abort(const char * message) {
    if (pys::inside_call()) {
        assertion_flag = true;
        throw pys::assertion_failure(message);
    }
}

int32_t device_kind(enum ggml_backend_dev_type type) {
    switch (type) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:
            return 0;
        case GGML_BACKEND_DEVICE_TYPE_GPU:
            return 1;
        case GGML_BACKEND_DEVICE_TYPE_IGPU:
            return 2;
        case GGML_BACKEND_DEVICE_TYPE_ACCEL:
            return 3;
        default:
            return 4;
    }
}

template <size_t N> void copy_name(char (&target)[N], const char * source) {
    std::strncpy(target, source != nullptr ? source : "", N - 1);
    target[N - 1] = '\0';
}

} // namespace

namespace pys {

void install_log(); // log.cpp

std::string & last_error() { return error_text; }
std::string & logged_errors() { return error_lines; }
bool & assertion_seen() { return assertion_flag; }
bool inside_call() { return call_depth > 0; }
bool leaving() { return is_leaving.load(std::memory_order_relaxed); }

call_scope::call_scope() {
    if (call_depth++ == 0) {
        calls_running.fetch_add(1);
        if (is_leaving.load()) {
            calls_running.fetch_sub(1);
            park_when_leaving();
            calls_running.fetch_add(1);
        }
        error_text.clear();
        error_lines.clear();
        assertion_flag = false;
    }
}
call_scope::~call_scope() {
    if (--call_depth == 0) {
        calls_running.fetch_sub(1);
        park_when_leaving();
    }
}

int32_t copy_text(const char * text, size_t size, char * buffer, int32_t capacity, int32_t * length) {
    *length = static_cast<int32_t>(size);
    if (capacity < 0 || size > static_cast<size_t>(capacity)) {
        return fail(PYS_ERR_BUFFER, "buffer too small");
    }
    std::memcpy(buffer, text, size);
    return PYS_OK;
}

} // namespace pys

int32_t pys_abi_version(void) { return PYS_ABI_VERSION; }
const char * pys_upstream_tag(void) { return PYSPEC_UPSTREAM_TAG; }
const char * pys_last_error(void) { return error_text.c_str(); }
const char * pys_system_info(void) { return llama_print_system_info(); }

int32_t pys_init(const char * backend_folder) {
    static std::once_flag once;
    return pys::guarded([&]() -> int32_t {
        std::call_once(once, [&] {
            pys::install_log();
            ggml_set_abort_callback(on_ggml_abort);
            // With GGML_BACKEND_DL nothing is registered yet; otherwise everything is linked in.
            if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
                ggml_backend_load_all_from_path(backend_folder);
            }
            llama_backend_init();
        });
        if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
            return pys::fail(PYS_ERR_EXCEPTION, std::string("no CPU backend was found in ") + backend_folder);
        }
        return PYS_OK;
    });
}

int32_t pys_leave(int32_t milliseconds) {
    leaver = std::this_thread::get_id();
    is_leaving.store(true);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (calls_running.load() > 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return calls_running.load();
}

int32_t pys_struct_size(const char * name) {
    static const std::pair<const char *, size_t> sizes[] = {
        {"pys_device_info", sizeof(pys_device_info)},
        {"pys_model_params", sizeof(pys_model_params)},
        {"pys_model_info", sizeof(pys_model_info)},
        {"pys_vocab_info", sizeof(pys_vocab_info)},
        {"pys_context_params", sizeof(pys_context_params)},
        {"pys_context_info", sizeof(pys_context_info)},
        {"pys_batch", sizeof(pys_batch)},
        {"pys_sampler_params", sizeof(pys_sampler_params)},
    };
    for (const auto & [candidate, size] : sizes) {
        if (std::strcmp(candidate, name) == 0) {
            return static_cast<int32_t>(size);
        }
    }
    return -1;
}

int32_t pys_device_count(int32_t * count) {
    return pys::guarded([&]() -> int32_t {
        *count = static_cast<int32_t>(ggml_backend_dev_count());
        return PYS_OK;
    });
}

int32_t pys_device_get(int32_t index, pys_device_info * info) {
    return pys::guarded([&]() -> int32_t {
        if (index < 0 || static_cast<size_t>(index) >= ggml_backend_dev_count()) {
            return pys::fail(PYS_ERR_ARGUMENT, "no such device");
        }
        ggml_backend_dev_t device = ggml_backend_dev_get(static_cast<size_t>(index));
        size_t memory_free = 0;
        size_t memory_total = 0;
        ggml_backend_dev_memory(device, &memory_free, &memory_total);
        info->memory_free = memory_free;
        info->memory_total = memory_total;
        info->kind = device_kind(ggml_backend_dev_type(device));
        copy_name(info->name, ggml_backend_dev_name(device));
        copy_name(info->description, ggml_backend_dev_description(device));
        copy_name(info->backend, ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
        return PYS_OK;
    });
}

int32_t pys_type_id(const char * name, int32_t * type) {
    return pys::guarded([&]() -> int32_t {
        for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
            const char * candidate = ggml_type_name(static_cast<ggml_type>(i));
            if (candidate != nullptr && std::strcmp(candidate, name) == 0) {
                *type = i;
                return PYS_OK;
            }
        }
        return pys::fail(PYS_ERR_ARGUMENT, std::string("unknown type ") + name);
    });
}
