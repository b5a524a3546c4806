// Weights in large pages. A decode reads all of them, and looks up the address of each page: with pages of 4 KiB that
// takes some percent of its time. The system rarely gives larger ones by itself, neither to a mapped file nor to
// memory that was filled before anyone asked.

#include "shim.hpp"

#if defined(__linux__)

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "llama-model.h"

namespace {

constexpr uintptr_t large_page = uintptr_t{2} << 20;
constexpr uintptr_t piece = 32 * large_page;     // what is there twice while it moves
constexpr uintptr_t least = uintptr_t{32} << 20; // smaller ones may lie between what malloc writes to
constexpr uintptr_t alignment = 4096;            // more than there is between two tensors

struct range {
    ggml_backend_buffer_t buffer;
    uintptr_t first;
    uintptr_t end;
};

uintptr_t page_after(uintptr_t address) { return (address + large_page - 1) / large_page * large_page; }

// Where the weights lie; those that follow each other in a buffer are one range. What else is there may be of no use (a
// mapped file holds what was laid out elsewhere, too), and between buffers there may be nothing at all.
std::vector<range> weights_of(const llama_model * model) {
    std::vector<range> found;
    for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
        if (tensor->buffer != nullptr && tensor->data != nullptr) {
            const auto first = reinterpret_cast<uintptr_t>(tensor->data);
            found.push_back(
                {tensor->buffer, first, first + ggml_backend_buffer_get_alloc_size(tensor->buffer, tensor)});
        }
    }
    std::sort(found.begin(), found.end(), [](const range & a, const range & b) { return a.first < b.first; });
    std::vector<range> joined;
    for (const range & each : found) {
        const bool near =
            !joined.empty() && joined.back().buffer == each.buffer && each.first < joined.back().end + alignment;
        if (near) {
            joined.back().end = std::max(joined.back().end, each.end);
        } else {
            joined.push_back(each);
        }
    }
    return joined;
}

// Copies whole large pages to new ones, and puts those in the place of the old ones: no address changes.
bool move_piece(uintptr_t first, size_t size) {
    void * spare = mmap(nullptr, size + large_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (spare == MAP_FAILED) {
        return false;
    }
    const auto begin = reinterpret_cast<uintptr_t>(spare);
    const uintptr_t aligned = page_after(begin);
    bool moved = madvise(reinterpret_cast<void *>(aligned), size, MADV_HUGEPAGE) == 0;
    if (moved) {
        std::memcpy(reinterpret_cast<void *>(aligned), reinterpret_cast<void *>(first), size);
        moved = mremap(reinterpret_cast<void *>(aligned), size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
                       reinterpret_cast<void *>(first)) != MAP_FAILED;
    }
    munmap(spare, moved ? aligned - begin : size + large_page);
    if (moved) {
        munmap(reinterpret_cast<void *>(aligned + size), begin + large_page - aligned);
    }
    return moved;
}

} // namespace

bool pys::use_large_pages(const llama_model * model, uint64_t budget, const std::function<bool()> & goes_on) {
    if (!model->devices.empty()) {
        return true; // what lies in this memory is for them, or read by the row
    }
    const std::vector<range> weights = weights_of(model);
    uint64_t total = 0;
    for (const range & each : weights) {
        total += each.end - each.first;
    }
    if (total > budget) {
        return true;
    }
    for (const range & each : weights) {
        const uintptr_t end = each.end / large_page * large_page;
        uintptr_t first = each.end - each.first < least ? end : page_after(each.first);
        while (first < end) {
            if (!goes_on()) {
                return false;
            }
            const uintptr_t size = std::min(piece, end - first);
            if (!move_piece(first, size)) {
                return true; // the rest stays as it is
            }
            first += size;
        }
    }
    return true;
}

#else

bool pys::use_large_pages(const llama_model *, uint64_t, const std::function<bool()> &) { return true; }

#endif
