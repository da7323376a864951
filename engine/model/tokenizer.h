/* tokenizer.json: text to token ids and back, as the checkpoint's author trained it.
 *
 * Byte-pair encoding in both of its common forms: byte-level (GPT-2, Llama 3, Qwen: a regex cuts
 * the text, bytes are the alphabet) and sentencepiece-style (Llama 2, Mistral: spaces become
 * U+2581, characters without a token fall back to <0xXX>). A feature outside of these is an
 * error naming its key when the file is loaded, never a different tokenisation.
 *
 * Input may be any bytes. Bytes that are not UTF-8 keep their place: a byte-level tokenizer encodes
 * them as themselves, byte fallback as <0xXX>, so that decoding gives them back.
 *
 * Ownership: a tokenizer owns its tables. Threading: encoding uses scratch inside the tokenizer,
 * one thread at a time; decoding and look-ups are const and may run on many threads.
 */
#ifndef BT_ENGINE_MODEL_TOKENIZER_H
#define BT_ENGINE_MODEL_TOKENIZER_H

#include "engine/core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    BT_TOK_MAX_IDS = 1 << 22,        /* largest id + 1; published vocabularies end near 2^18 */
    BT_TOK_MAX_TEXT_BYTES = 1 << 30, /* one call of encode; symbol positions are int32 */
};

struct bt_tokenizer;

/* Token ids that grow as needed; zero-initialise, free with bt_ids_fini. */
struct bt_ids {
    int32_t *ids; /* owned, malloc */
    int64_t n;
    int64_t cap;
};

/* Bytes that grow as needed, not NUL-terminated; zero-initialise, free with bt_bytes_fini. */
struct bt_bytes {
    char *p; /* owned, malloc */
    size_t n;
    size_t cap;
};

void bt_ids_fini(struct bt_ids *v);
void bt_bytes_fini(struct bt_bytes *v);

/* Loads tokenizer.json. Returns BT_ERR_NOTFOUND, BT_ERR_IO, BT_ERR_INPUT (file and key path), or
 * BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_tokenizer_load(const char *path, struct bt_tokenizer **out,
                                            struct bt_error *err);

/* Loads DIR/tokenizer.json; bos_token and eos_token come from DIR/tokenizer_config.json if there.
 */
BT_NODISCARD enum bt_code bt_tokenizer_load_dir(const char *dir, struct bt_tokenizer **out,
                                                struct bt_error *err);

/* Frees; NULL is allowed. */
void bt_tokenizer_destroy(struct bt_tokenizer *t);

struct bt_encode_opts {
    bool skip_template; /* do not add what the post-processor adds (BOS, EOS) */
    bool plain_text;    /* special tokens written in the text are text, not control tokens */
};

/* Appends the ids of the text to *out. opts may be NULL. A BOS (EOS) that the post-processor would
 * add where the text already begins (ends) with it is not added twice. Returns BT_ERR_ARG for more
 * than BT_TOK_MAX_TEXT_BYTES; BT_ERR_INPUT for a character that the vocabulary cannot express;
 * BT_ERR_NOMEM. O(n log n) in bytes. */
BT_NODISCARD enum bt_code bt_tokenizer_encode(struct bt_tokenizer *t, const char *text,
                                              size_t n_bytes, const struct bt_encode_opts *opts,
                                              struct bt_ids *out, struct bt_error *err);

/* Appends the bytes of n ids to *out; special tokens are left out when skip_special. Returns
 * BT_ERR_ARG for an id that is not in the vocabulary; BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_tokenizer_decode(const struct bt_tokenizer *t, const int32_t *ids,
                                              int64_t n, bool skip_special, struct bt_bytes *out,
                                              struct bt_error *err);

/* Decoding one token at a time. What is handed out never ends inside a UTF-8 character: the bytes
 * wait for the token that completes them. The pieces joined equal bt_tokenizer_decode of all. */
struct bt_decode_stream {
    const struct bt_tokenizer *tokenizer; /* borrowed, outlives the stream */
    bool skip_special;
    bool started;       /* a token has been decoded */
    int32_t strip_left; /* characters the decoder still removes from the front */
    uint8_t pending[4];
    int32_t n_pending;
};

void bt_decode_stream_init(struct bt_decode_stream *s, const struct bt_tokenizer *t,
                           bool skip_special);

/* Appends to *out what the token completes (nothing, when it ends inside a character). Errors as
 * bt_tokenizer_decode. */
BT_NODISCARD enum bt_code bt_decode_stream_push(struct bt_decode_stream *s, int32_t id,
                                                struct bt_bytes *out, struct bt_error *err);

/* Appends the bytes still waiting: the end came inside a character. */
BT_NODISCARD enum bt_code bt_decode_stream_finish(struct bt_decode_stream *s, struct bt_bytes *out,
                                                  struct bt_error *err);

/* Largest id + 1. */
int32_t bt_tokenizer_n_ids(const struct bt_tokenizer *t);

/* The id of a token as tokenizer.json spells it, or -1. */
int32_t bt_tokenizer_find(const struct bt_tokenizer *t, const char *token);

/* The token as tokenizer.json spells it; NULL for an id that is not used. */
const char *bt_tokenizer_token(const struct bt_tokenizer *t, int32_t id);

/* True for added tokens marked special. */
bool bt_tokenizer_is_special(const struct bt_tokenizer *t, int32_t id);

/* bos_token and eos_token of tokenizer_config.json; -1 when not said. */
int32_t bt_tokenizer_bos(const struct bt_tokenizer *t);
int32_t bt_tokenizer_eos(const struct bt_tokenizer *t);

/* Hash of all ids and tokens: equal for tokenizers that bt_tokenizer_check_same takes as one. */
uint64_t bt_tokenizer_vocab_hash(const struct bt_tokenizer *t);

/* Fails with BT_ERR_INPUT when an id has no row in a model's embedding table of n_vocab rows. (More
 * rows than ids are padding.) */
BT_NODISCARD enum bt_code bt_tokenizer_check_vocab(const struct bt_tokenizer *t, int32_t n_vocab,
                                                   struct bt_error *err);

/* Fails with BT_ERR_INPUT naming the first id whose token differs: a draft model must speak its
 * target's vocabulary. */
BT_NODISCARD enum bt_code bt_tokenizer_check_same(const struct bt_tokenizer *target,
                                                  const struct bt_tokenizer *draft,
                                                  struct bt_error *err);

#ifdef __cplusplus
}
#endif

#endif
