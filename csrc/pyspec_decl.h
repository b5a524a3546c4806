/* The contract between the native library and Python: plain C declarations, nothing else.
 *
 * Three readers: the C++ compiler (through shim.hpp), pyspec/_native/declarations.py (ctypes) and the
 * ABI test (cffi, which parses this very file and compares both). Therefore: no preprocessor lines, no
 * upstream types, only fixed-width scalars, opaque handles, and buffers that the caller owns.
 *
 * Every function that can fail returns a pys_status. pys_last_error() explains the last failure of the
 * calling thread. "text" results are copied into (buffer, capacity); *length always receives the size
 * that is needed, and PYS_ERR_BUFFER says that the capacity was too small.
 */

enum pys_abi { PYS_ABI_VERSION = 7 }; /* raised with every change of this file */

enum pys_status {
    PYS_OK = 0,
    PYS_ERR_ARGUMENT = 1, /* an argument that Python should have refused */
    PYS_ERR_BUFFER = 2,   /* the caller's buffer is too small */
    PYS_ERR_MODEL_LOAD = 3,
    PYS_ERR_CANCELLED = 4, /* a progress callback said stop */
    PYS_ERR_QUANTIZE = 5,
    PYS_ERR_VOCAB = 6,
    PYS_ERR_CONTEXT_CREATE = 7,
    PYS_ERR_CONTEXT_FULL = 8,   /* no free cell; memory is as before the call */
    PYS_ERR_BATCH = 9,          /* the batch was refused; memory is as before the call */
    PYS_ERR_ABORTED = 10,       /* stopped on request; ubatches that were finished stay in memory */
    PYS_ERR_DECODE = 11,        /* the computation failed; ubatches that were finished stay in memory */
    PYS_ERR_NO_MEMORY = 12,     /* this context has no memory module */
    PYS_ERR_REFUSED = 13,       /* the memory cannot remove these positions */
    PYS_ERR_STATE = 14,         /* saved state does not fit */
    PYS_ERR_OUT_OF_MEMORY = 15, /* the host or a device could not allocate */
    PYS_ERR_EXCEPTION = 16,     /* a C++ exception */
    PYS_ERR_ASSERT = 17,        /* an assertion of ggml or llama.cpp; the handle must not be used again */
    PYS_LOGGED = 18             /* no failure: log lines wait. Decodes and encodes say so, others do not */
};

typedef struct pys_model pys_model;
typedef struct pys_context pys_context;
typedef struct pys_sampler pys_sampler;

/* Returns 42 to go on; anything else stops, also what a callback leaves that was cut short. progress is in [0, 1]. */
typedef int32_t (*pys_progress_fn)(float progress, void * user_data);

/* ---- library ---- */

int32_t pys_abi_version(void);
const char * pys_upstream_tag(void);
const char * pys_system_info(void);
const char * pys_last_error(void);
int32_t pys_init(const char * backend_folder);
/* Size that the compiler gave a structure of this file, -1 for an unknown name. */
int32_t pys_struct_size(const char * name);
/* The process is about to end: calls of other threads are stopped where they are and never return. Waits for
 * them at most so long and returns how many still compute; when there are any, nothing may be freed. */
int32_t pys_leave(int32_t milliseconds);

typedef struct pys_device_info {
    uint64_t memory_free;
    uint64_t memory_total;
    int32_t kind; /* 0 cpu, 1 gpu, 2 integrated gpu, 3 accelerator, 4 other */
    char name[128];
    char description[256];
    char backend[64];
} pys_device_info;

int32_t pys_device_count(int32_t * count);
int32_t pys_device_get(int32_t index, pys_device_info * info);
int32_t pys_type_id(const char * name, int32_t * type);

/* Log lines wait in a queue until Python takes them. The counter may be read without a call. */
const int32_t * pys_log_pending(void);
int32_t pys_log_pop(char * buffer, int32_t capacity, int32_t * length, int32_t * level);
void pys_log_threshold(int32_t level);

/* ---- model and vocabulary ---- */

typedef struct pys_model_params {
    int32_t n_gpu_layers; /* negative: all */
    int32_t main_gpu;
    int32_t use_mmap;
    int32_t use_mlock;
    int32_t check_tensors;
    int32_t vocab_only;
    int32_t repack;            /* allow weights to be laid out again for the CPU */
    int32_t next_n;            /* load next-n layers */
    uint64_t large_page_bytes; /* weights for the CPU are moved to large pages when they are at most so large */
    pys_progress_fn progress;
    void * progress_data;
} pys_model_params;

typedef struct pys_model_info {
    uint64_t size_bytes;
    uint64_t n_params;
    int32_t n_ctx_train;
    int32_t n_embd;
    int32_t n_embd_inp; /* width of a row in place of a token */
    int32_t n_embd_out; /* width of a next-n row */
    int32_t n_layer;
    int32_t n_layer_nextn;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t n_swa;
    int32_t has_encoder;
    int32_t has_decoder;
    int32_t is_recurrent;
    int32_t is_hybrid;
    int32_t is_diffusion;
    int32_t decoder_start_token;
    int32_t selector_top_k; /* candidates per row of a DFlash2 lattice, 0 for any other model */
} pys_model_info;

int32_t pys_model_load(const char * path, const pys_model_params * params, pys_model ** model);
void pys_model_free(pys_model * model);
int32_t pys_model_get_info(const pys_model * model, pys_model_info * info);
/* The layers of the target whose inputs a draft model reads; n_layers receives their number, 0 for any other model. */
int32_t pys_model_target_layers(const pys_model * model, int32_t * layers, int32_t capacity, int32_t * n_layers);
int32_t pys_model_has_tensor(const pys_model * model, const char * name, int32_t * result);
int32_t pys_model_file_type(const pys_model * model, char * buffer, int32_t capacity, int32_t * length);
int32_t pys_model_chat_template(const pys_model * model, const char * name, char * buffer, int32_t capacity,
                                int32_t * length); /* length -1: there is none */
int32_t pys_model_meta_count(const pys_model * model, int32_t * count);
int32_t pys_model_meta_key(const pys_model * model, int32_t index, char * buffer, int32_t capacity, int32_t * length);
int32_t pys_model_meta_value(const pys_model * model, int32_t index, char * buffer, int32_t capacity, int32_t * length);
int32_t pys_model_quantize(const char * source, const char * destination, int32_t file_type, int32_t n_threads,
                           int32_t allow_requantize, int32_t pure, const int32_t * prune_layers, int32_t n_prune);

typedef struct pys_vocab_info {
    int32_t type;
    int32_t n_tokens;
    int32_t add_bos;
    int32_t add_eos;
    int32_t bos; /* -1 where there is none, like all below */
    int32_t eos;
    int32_t eot;
    int32_t sep;
    int32_t nl;
    int32_t pad;
    int32_t mask;
    int32_t fim_pre;
    int32_t fim_suf;
    int32_t fim_mid;
} pys_vocab_info;

int32_t pys_vocab_get_info(const pys_model * model, pys_vocab_info * info);
int32_t pys_vocab_eog(const pys_model * model, uint8_t * is_eog);       /* [n_tokens] */
int32_t pys_vocab_attributes(const pys_model * model, int32_t * flags); /* [n_tokens] */
int32_t pys_vocab_tokenize(const pys_model * model, const char * text, int32_t n_bytes, int32_t * tokens,
                           int32_t capacity, int32_t add_special, int32_t parse_special, int32_t * n_tokens);
/* The bytes of each token one after the other; offsets [n_tokens + 1]. kind: 0 piece without special
 * tokens, 1 piece with special tokens, 2 the vocabulary's raw text. */
int32_t pys_vocab_pieces(const pys_model * model, const int32_t * tokens, int32_t n_tokens, int32_t kind, char * buffer,
                         int32_t capacity, int32_t * offsets);

/* ---- context ---- */

typedef struct pys_context_params {
    int32_t n_ctx; /* 0: the model's */
    int32_t n_batch;
    int32_t n_ubatch;
    int32_t n_seq_max;
    int32_t n_rs_seq;
    int32_t n_outputs_max;
    int32_t n_outputs_max_per_seq;
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t flash_attn; /* -1 auto, 0 off, 1 on */
    int32_t type_k;     /* ggml type ids, see pys_type_id */
    int32_t type_v;
    int32_t offload_kqv;
    int32_t op_offload;
    int32_t swa_full;
    int32_t kv_unified;
    float rope_freq_base;  /* 0: the model's */
    float rope_freq_scale; /* 0: the model's */
    int32_t next_n;        /* 1: run the model's next-n layers instead of the model */
    pys_context * other;   /* the target's context, or null; a draft model shares its threads, may borrow from it */
} pys_context_params;

typedef struct pys_context_info {
    int32_t n_ctx;
    int32_t n_ctx_seq;
    int32_t n_batch;
    int32_t n_ubatch;
    int32_t n_seq_max;
    int32_t n_rs_seq;
    int32_t n_vocab;
    int32_t has_memory;
    int32_t borrows; /* of params.other: 1 weights, 2 memory too */
} pys_context_info;

/* One entry per token. An entry may belong to several sequences: those of entry i are
 * seq_ids[seq_offsets[i] : seq_offsets[i + 1]]. Either all entries have a row of floats, in place of a token or beside
 * it, or none has. */
typedef struct pys_batch {
    const int32_t * tokens;      /* [n_tokens], -1: none, the row stands alone */
    const int32_t * positions;   /* [n_tokens] */
    const int32_t * seq_offsets; /* [n_tokens + 1] */
    const int32_t * seq_ids;     /* [seq_offsets[n_tokens]] */
    const int8_t * outputs;      /* [n_tokens], 1 where a logits row is wanted */
    int32_t * best;     /* [rows wanted], receives the best token of each row, -1 where no logit is above -inf */
    const float * rows; /* [n_tokens, row_width] or null: embeddings or hidden states */
    int32_t row_width;
    int32_t n_tokens;
} pys_batch;

int32_t pys_context_create(pys_model * model, const pys_context_params * params, pys_context ** context);
void pys_context_free(pys_context * context);
int32_t pys_context_get_info(const pys_context * context, pys_context_info * info);
int32_t pys_context_set_threads(pys_context * context, int32_t n_threads, int32_t n_threads_batch);
/* Any thread may call this: a decode in progress stops soon with PYS_ERR_ABORTED when value is not 0. */
int32_t pys_context_request_abort(pys_context * context, int32_t value);
int32_t pys_context_decode(pys_context * context, const pys_batch * batch);
/* Runs the encoder; at most n_ubatch entries. Memory is untouched. */
int32_t pys_context_encode(pys_context * context, const pys_batch * batch);
/* Rows of the last decode in batch order, [n_rows, n_vocab]; valid until the next decode. */
int32_t pys_context_logits(pys_context * context, const float ** rows, int32_t * n_rows);
/* The k largest logits of a row, best first, lowest id first among equals; n_found may be less than k. */
int32_t pys_context_top_k(pys_context * context, int32_t row, int32_t k, int32_t * tokens, float * logits,
                          int32_t * n_found);
/* Logarithms of the probabilities of n tokens, [n], straight from the row. PYS_ERR_DECODE: the row is not of numbers.
 */
int32_t pys_context_logprobs(pys_context * context, int32_t row, const int32_t * tokens, int32_t n, double * logprobs);
/* The largest logit's token among those that a mask allows, see pys_sampler_sample; -1: none. */
int32_t pys_context_best_allowed(pys_context * context, int32_t row, const uint32_t * mask, int32_t * token);

/* ---- hidden states ---- */

/* Whether decodes keep the input of a layer, or the next-n rows (0 no, 1 of wanted rows only, 2 of all entries). */
int32_t pys_context_keep_layer_input(pys_context * context, int32_t layer, int32_t value);
int32_t pys_context_keep_next_n(pys_context * context, int32_t which);
/* Whether decodes keep the states after the output norm; then every entry of a batch must want its logits row. */
int32_t pys_context_keep_output_states(pys_context * context, int32_t value);
/* Rows of the last decode in batch order, valid until the next one: [n_rows, n_embd], and for the other two
 * [n_rows, n_embd_out]. PYS_ERR_ARGUMENT when they were not kept. */
int32_t pys_context_layer_input(pys_context * context, int32_t layer, const float ** rows, int32_t * n_rows);
int32_t pys_context_next_n(pys_context * context, const float ** rows, int32_t * n_rows);
int32_t pys_context_output_states(pys_context * context, const float ** rows, int32_t * n_rows);
/* Overwrites the kept next-n rows, to find out whether the model writes any. */
int32_t pys_context_fill_next_n(pys_context * context, float value);
int32_t pys_context_set_next_n_layer(pys_context * context, int32_t offset);
int32_t pys_context_set_causal(pys_context * context, int32_t value);
/* Lets the device find the k best tokens of each wanted row of a sequence; then only pys_context_top_k and
 * batch.best know of the rows. k 0 ends it. PYS_ERR_REFUSED: the device cannot. */
int32_t pys_context_select_on_device(pys_context * context, int32_t seq_id, int32_t k);

/* ---- memory and state ---- */

int32_t pys_memory_clear(pys_context * context, int32_t clear_data);
/* Removes positions [begin, end) of a sequence; end -1 is open. PYS_ERR_REFUSED: nothing was removed. */
int32_t pys_memory_remove(pys_context * context, int32_t seq_id, int32_t begin, int32_t end);
int32_t pys_memory_copy(pys_context * context, int32_t source, int32_t destination, int32_t begin, int32_t end);
int32_t pys_memory_keep(pys_context * context, int32_t seq_id);
int32_t pys_memory_shift(pys_context * context, int32_t seq_id, int32_t begin, int32_t end, int32_t delta);
int32_t pys_memory_range(pys_context * context, int32_t seq_id, int32_t * first, int32_t * last); /* -1: empty */
int32_t pys_memory_can_shift(pys_context * context, int32_t * result);
/* flags: 1 only what cannot be trimmed, 2 keep tensors on the device */
int32_t pys_state_size(pys_context * context, int32_t seq_id, uint32_t flags, uint64_t * n_bytes);
int32_t pys_state_save(pys_context * context, int32_t seq_id, uint32_t flags, uint8_t * buffer, uint64_t capacity,
                       uint64_t * n_bytes);
int32_t pys_state_load(pys_context * context, int32_t seq_id, uint32_t flags, const uint8_t * buffer, uint64_t n_bytes);

/* ---- sampler ---- */

/* What a row goes through, in this order: mask, logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p,
 * XTC, temperature. With mirostat nothing from top-n-sigma to XTC applies. */
typedef struct pys_sampler_params {
    double temperature;    /* 0: the most likely token */
    double dynatemp_range; /* 0: off, like all below where 0 would do nothing */
    double dynatemp_exponent;
    double top_n_sigma;
    double typical_p; /* 1: off */
    double top_p;     /* 1: off */
    double min_p;
    double xtc_probability;
    double xtc_threshold; /* above 0.5: off */
    double repeat_penalty;
    double frequency_penalty;
    double presence_penalty;
    double dry_multiplier;
    double dry_base;
    double mirostat_ent;
    double mirostat_lr;
    int32_t top_k;
    int32_t repeat_last_n;
    int32_t dry_allowed_length;
    int32_t dry_penalty_last_n;
    int32_t mirostat; /* 0 off, 1, 2 */
    int32_t n_vocab;
    uint32_t seed;
} pys_sampler_params;

int32_t pys_sampler_create(const pys_sampler_params * params, pys_sampler ** sampler);
void pys_sampler_free(pys_sampler * sampler);
int32_t pys_sampler_add_bias(pys_sampler * sampler, int32_t token, double bias);
/* DRY looks for no repetition across one of the heads with the tail behind it. */
int32_t pys_sampler_add_breaker(pys_sampler * sampler, const int32_t * heads, int32_t n_heads, const int32_t * tail,
                                int32_t n_tail);
/* Draws from a row of the last decode and takes the token into the sampler's state. mask: null, or one bit per token,
 * lowest first, 1 where it is allowed, [(n_vocab + 31) / 32]. PYS_ERR_DECODE: no token can be chosen. */
int32_t pys_sampler_sample(pys_sampler * sampler, pys_context * context, int32_t row, const uint32_t * mask,
                           int32_t * token);
/* What the former would draw from, [n], valid until the next call with this sampler; changes no state. With mirostat
 * it is that of this moment: what is drawn moves it. */
int32_t pys_sampler_distribution(pys_sampler * sampler, pys_context * context, int32_t row, const uint32_t * mask,
                                 const int32_t ** tokens, const double ** probs, int32_t * n);
int32_t pys_sampler_accept(pys_sampler * sampler, int32_t token);
/* How far a sampler has come beside the tokens it took in: draws, and mirostat's bound. A new one of the same seed that
 * is set there, and takes in the same tokens, goes on as the first one would. */
int32_t pys_sampler_progress(const pys_sampler * sampler, uint64_t * n_draws, double * mu);
int32_t pys_sampler_resume(pys_sampler * sampler, uint64_t n_draws, double mu);
/* Returning to the state that was saved last; in constant time, however far penalties look back. */
int32_t pys_sampler_save(pys_sampler * sampler);
int32_t pys_sampler_restore(pys_sampler * sampler);
