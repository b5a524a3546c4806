// Vocabulary: text to tokens and back.

#include <cstring>
#include <limits>
#include <vector>

#include "shim.hpp"

namespace {

enum piece_kind : int32_t { PIECE_PLAIN = 0, PIECE_SPECIAL = 1, PIECE_RAW = 2 };

void append_piece(const llama_vocab * vocab, llama_token token, int32_t kind, std::string & out) {
    if (kind == PIECE_RAW) {
        out += llama_vocab_get_text(vocab, token);
        return;
    }
    char small[64];
    const bool special = kind == PIECE_SPECIAL;
    const int32_t size = llama_token_to_piece(vocab, token, small, sizeof(small), 0, special);
    if (size >= 0) {
        out.append(small, static_cast<size_t>(size));
        return;
    }
    std::vector<char> large(static_cast<size_t>(-size));
    const int32_t again = llama_token_to_piece(vocab, token, large.data(), -size, 0, special);
    out.append(large.data(), static_cast<size_t>(again < 0 ? 0 : again));
}

} // namespace

int32_t pys_vocab_get_info(const pys_model * model, pys_vocab_info * info) {
    return pys::guarded([&]() -> int32_t {
        const llama_vocab * vocab = model->vocab;
        info->type = llama_vocab_type(vocab);
        info->n_tokens = model->n_vocab;
        info->add_bos = llama_vocab_get_add_bos(vocab) ? 1 : 0;
        info->add_eos = llama_vocab_get_add_eos(vocab) ? 1 : 0;
        info->bos = llama_vocab_bos(vocab);
        info->eos = llama_vocab_eos(vocab);
        info->eot = llama_vocab_eot(vocab);
        info->sep = llama_vocab_sep(vocab);
        info->nl = llama_vocab_nl(vocab);
        info->pad = llama_vocab_pad(vocab);
        info->mask = llama_vocab_mask(vocab);
        info->fim_pre = llama_vocab_fim_pre(vocab);
        info->fim_suf = llama_vocab_fim_suf(vocab);
        info->fim_mid = llama_vocab_fim_mid(vocab);
        return PYS_OK;
    });
}

int32_t pys_vocab_eog(const pys_model * model, uint8_t * is_eog) {
    return pys::guarded([&]() -> int32_t {
        for (int32_t token = 0; token < model->n_vocab; ++token) {
            is_eog[token] = llama_vocab_is_eog(model->vocab, token) ? 1 : 0;
        }
        return PYS_OK;
    });
}

int32_t pys_vocab_attributes(const pys_model * model, int32_t * flags) {
    return pys::guarded([&]() -> int32_t {
        for (int32_t token = 0; token < model->n_vocab; ++token) {
            flags[token] = llama_vocab_get_attr(model->vocab, token);
        }
        return PYS_OK;
    });
}

int32_t pys_vocab_tokenize(const pys_model * model, const char * text, int32_t n_bytes, int32_t * tokens,
                           int32_t capacity, int32_t add_special, int32_t parse_special, int32_t * n_tokens) {
    return pys::guarded([&]() -> int32_t {
        const int32_t count =
            llama_tokenize(model->vocab, text, n_bytes, tokens, capacity, add_special != 0, parse_special != 0);
        if (count == std::numeric_limits<int32_t>::min()) {
            return pys::fail(PYS_ERR_VOCAB, "the text has more tokens than fit in 32 bits");
        }
        *n_tokens = count < 0 ? -count : count;
        return count < 0 ? pys::fail(PYS_ERR_BUFFER, "buffer too small") : static_cast<int32_t>(PYS_OK);
    });
}

int32_t pys_vocab_pieces(const pys_model * model, const int32_t * tokens, int32_t n_tokens, int32_t kind, char * buffer,
                         int32_t capacity, int32_t * offsets) {
    return pys::guarded([&]() -> int32_t {
        std::string text;
        offsets[0] = 0;
        for (int32_t i = 0; i < n_tokens; ++i) {
            append_piece(model->vocab, tokens[i], kind, text);
            if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
                return pys::fail(PYS_ERR_VOCAB, "the text is larger than 2 GiB");
            }
            offsets[i + 1] = static_cast<int32_t>(text.size());
        }
        int32_t length = 0;
        return pys::copy_text(text.data(), text.size(), buffer, capacity, &length);
    });
}
