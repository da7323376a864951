/* The parts of the tokenizer, shared by its source files only. */
#ifndef BT_ENGINE_MODEL_TOK_INTERNAL_H
#define BT_ENGINE_MODEL_TOK_INTERNAL_H

#include "engine/core/arena.h"
#include "engine/model/tokenizer.h"

#include <jansson.h>

enum {
    TOK_MAX_STEPS = 16,        /* normalizers, pre-tokenizers or decoders in one sequence */
    TOK_MAX_TEMPLATE_IDS = 16, /* special ids before or after the text */
    TOK_WHERE_BYTES = 192,     /* a key path in a message */
    TOK_CACHE_SLOTS = 1 << 14,
    TOK_CACHE_KEY_BYTES = 28, /* longer pre-tokens are rare and are not kept */
    TOK_CACHE_IDS = 8,
};

/* ---- strings to ids ---- */

struct tok_map_slot {
    const char *key; /* NULL: empty; in the arena */
    uint32_t n_bytes;
    int32_t id;
};

struct tok_map {
    struct tok_map_slot *slots; /* in the arena */
    uint32_t mask;              /* number of slots - 1 */
};

enum bt_code tok_map_init(struct tok_map *m, struct bt_arena *arena, size_t n,
                          struct bt_error *err);
/* Adds a key; false when it is there already. The map was made large enough. */
bool tok_map_add(struct tok_map *m, const char *key, size_t n_bytes, int32_t id);
/* The id or -1. */
int32_t tok_map_find(const struct tok_map *m, const char *key, size_t n_bytes);

/* ---- merges ---- */

struct tok_merge {
    int32_t left; /* -1: an empty slot */
    int32_t right;
    int32_t rank;
    int32_t id; /* of the merged token */
};

struct tok_merges {
    struct tok_merge *slots; /* in the arena */
    uint32_t mask;
};

enum bt_code tok_merges_init(struct tok_merges *m, struct bt_arena *arena, size_t n,
                             struct bt_error *err);
/* Adds a pair; the later of two equal pairs wins, as in a dictionary. */
void tok_merges_add(struct tok_merges *m, int32_t left, int32_t right, int32_t rank, int32_t id);
const struct tok_merge *tok_merges_find(const struct tok_merges *m, int32_t left, int32_t right);

/* ---- regular expressions ---- */

struct tok_regex;

/* Compiles a pattern of the Oniguruma dialect that tokenizer.json uses; what PCRE2 reads
 * differently is translated, what cannot be is an error at `where`. */
enum bt_code tok_regex_new(const char *pattern, const char *where, struct tok_regex **out,
                           struct bt_error *err);
void tok_regex_free(struct tok_regex *r);
/* First match at or after `from` in valid UTF-8. *found tells; *start and *end are byte offsets. */
enum bt_code tok_regex_match(const struct tok_regex *r, const char *text, size_t n_bytes,
                             size_t from, bool *found, size_t *start, size_t *end,
                             struct bt_error *err);

/* ---- steps ---- */

struct tok_pattern {
    const char *literal; /* NULL when a regex; in the arena */
    size_t n_literal;
    struct tok_regex *regex; /* owned; NULL when a literal */
};

enum bt_code tok_pattern_match(const struct tok_pattern *p, const char *text, size_t n_bytes,
                               size_t from, bool *found, size_t *start, size_t *end,
                               struct bt_error *err);

enum tok_norm_kind {
    TOK_NORM_PREPEND,
    TOK_NORM_REPLACE,
    TOK_NORM_NFC,
    TOK_NORM_NFD,
    TOK_NORM_NFKC,
    TOK_NORM_NFKD,
};

struct tok_norm {
    enum tok_norm_kind kind;
    struct tok_pattern pattern; /* REPLACE */
    const char *content;        /* REPLACE, PREPEND; in the arena */
};

enum tok_behavior {
    TOK_REMOVED,
    TOK_ISOLATED,
    TOK_MERGED_WITH_PREVIOUS,
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS,
};

enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER };

enum tok_pre_kind { TOK_PRE_SPLIT, TOK_PRE_BYTE_LEVEL, TOK_PRE_METASPACE };

struct tok_pre {
    enum tok_pre_kind kind;
    struct tok_pattern pattern; /* SPLIT; BYTE_LEVEL with its own regex */
    enum tok_behavior behavior; /* SPLIT */
    bool invert;                /* SPLIT */
    bool add_prefix_space;      /* BYTE_LEVEL */
    const char *replacement;    /* METASPACE; in the arena */
    enum tok_prepend prepend;   /* METASPACE */
    bool split;                 /* METASPACE */
};

enum tok_dec_kind {
    TOK_DEC_BYTE_LEVEL,
    TOK_DEC_REPLACE,
    TOK_DEC_BYTE_FALLBACK,
    TOK_DEC_STRIP,
    TOK_DEC_METASPACE,
};

/* One decoder that works on each token by itself. */
struct tok_dec {
    enum tok_dec_kind kind;
    const char *pattern; /* REPLACE, METASPACE (the replacement), STRIP (one character) */
    const char *content; /* REPLACE */
    int32_t start;       /* STRIP */
    int32_t stop;        /* STRIP */
    bool strip_first;    /* METASPACE: spaces of the first token vanish */
};

struct tok_added {
    int32_t id;
    const char *content; /* in the arena */
    size_t n_content;
    const char *match; /* what is looked for: content, or its normalised form; in the arena */
    size_t n_match;
    bool special;
    bool lstrip;
    bool rstrip;
    bool single_word;
    bool normalized;
};

/* Added tokens looked for in one pass: sorted by first byte, longest first. */
struct tok_matcher {
    const struct tok_added **tokens; /* in the arena */
    int32_t first[257];              /* tokens[first[b] .. first[b + 1]) begin with byte b */
};

struct tok_piece {
    size_t start;
    size_t end;
};

struct tok_pieces {
    struct tok_piece *p; /* owned, malloc */
    size_t n;
    size_t cap;
};

struct tok_symbol {
    int32_t id; /* -1: merged into its left neighbour */
    int32_t prev;
    int32_t next;
};

struct tok_candidate {
    int32_t rank;
    int32_t pos;
    int32_t id;
};

struct tok_cache_slot {
    uint32_t n_key; /* 0: empty */
    char key[TOK_CACHE_KEY_BYTES];
    int32_t n_ids;
    int32_t ids[TOK_CACHE_IDS];
};

/* Memory of one encode call, kept for the next. */
struct tok_scratch {
    struct bt_bytes normal[2]; /* normalizers write the one and read the other */
    struct bt_bytes cut[2];    /* and so do pre-tokenizers that rewrite the text */
    struct tok_pieces pieces[2];
    struct tok_symbol *symbols; /* owned, malloc */
    size_t cap_symbols;
    struct tok_candidate *heap; /* owned, malloc */
    size_t cap_heap;
    struct bt_bytes key;          /* a pre-token spelled in the byte-level alphabet */
    struct tok_cache_slot *cache; /* owned, malloc */
};

struct bt_tokenizer {
    struct bt_arena arena;
    char *path; /* in the arena */

    int32_t n_ids;
    const char **tokens;  /* [n_ids], NULL: unused; in the arena */
    const char **bytes;   /* [n_ids] what the token decodes to; in the arena */
    uint32_t *n_bytes;    /* [n_ids]; in the arena */
    uint8_t *flags;       /* [n_ids] TOK_ID_*; in the arena */
    struct tok_map vocab; /* spelled tokens of the model and added ones */
    struct tok_merges merges;

    bool byte_level; /* the alphabet is bytes */
    bool byte_fallback;
    bool ignore_merges;
    bool fuse_unk;
    bool cut_at_spaces;    /* no token has U+2581 after another character: words are independent */
    int32_t unk_id;        /* -1: none */
    int32_t byte_ids[256]; /* the token of a byte (alphabet or <0xXX>), -1: none */

    struct tok_norm norms[TOK_MAX_STEPS];
    int32_t n_norms;
    struct tok_pre pres[TOK_MAX_STEPS];
    int32_t n_pres;
    struct tok_dec decs[TOK_MAX_STEPS];
    int32_t n_decs;
    bool fused;         /* a Fuse was read: later decoders see the joined text */
    int32_t strip_left; /* after all tokens are joined: how many of strip_char go from the front */
    char strip_char;

    int32_t prefix_ids[TOK_MAX_TEMPLATE_IDS];
    int32_t n_prefix_ids;
    int32_t suffix_ids[TOK_MAX_TEMPLATE_IDS];
    int32_t n_suffix_ids;

    struct tok_added *added; /* in the arena */
    int32_t n_added;
    struct tok_matcher raw;        /* not normalised: looked for in the text as given */
    struct tok_matcher normalized; /* looked for after the normalizers */

    int32_t bos_id;
    int32_t eos_id;
    struct tok_scratch scratch;
};

enum { TOK_ID_ADDED = 1, TOK_ID_SPECIAL = 2 };

#define TOK_SPACE_MARK "\xe2\x96\x81" /* U+2581, sentencepiece's visible space */

/* ---- growing ---- */

enum bt_code tok_bytes_append(struct bt_bytes *v, const void *p, size_t n, struct bt_error *err);
enum bt_code tok_ids_append(struct bt_ids *v, int32_t id, struct bt_error *err);
enum bt_code tok_pieces_append(struct tok_pieces *v, size_t start, size_t end,
                               struct bt_error *err);

/* ---- text ---- */

/* Length of the valid UTF-8 character at p[0..n), 0 when the bytes there are none. */
size_t tok_utf8_length(const char *p, size_t n);
/* The code point at p[0..n) and its length; an invalid byte gives -1 and 1. */
int32_t tok_utf8_decode(const char *p, size_t n, size_t *n_char);
/* Start of the character that ends at p[n - 1], n > 0. */
size_t tok_utf8_before(const char *p, size_t n);
bool tok_is_space(int32_t c);
bool tok_is_word(int32_t c);

/* The byte-level alphabet: the code point that stands for a byte, and back (-1: none). */
int32_t tok_byte_to_char(uint8_t b);
int32_t tok_char_to_byte(int32_t c);
/* Spells bytes in that alphabet. */
enum bt_code tok_spell_bytes(const char *p, size_t n, struct bt_bytes *out, struct bt_error *err);

/* ---- stages ---- */

enum bt_code tok_parse_normalizer(struct bt_tokenizer *t, const json_t *j, struct bt_error *err);
enum bt_code tok_parse_pre_tokenizer(struct bt_tokenizer *t, const json_t *j, struct bt_error *err);
enum bt_code tok_parse_post_processor(struct bt_tokenizer *t, const json_t *j,
                                      struct bt_error *err);
enum bt_code tok_parse_decoder(struct bt_tokenizer *t, const json_t *j, struct bt_error *err);

/* Applies the normalizers to valid UTF-8; prefix: the text begins a section, so that a Prepend
 * applies. The result is text[0..n) itself or in the scratch. */
enum bt_code tok_normalize(struct bt_tokenizer *t, const char *text, size_t n, bool prefix,
                           const char **out, size_t *n_out, struct bt_error *err);

/* Cuts normalised text into pre-tokens: scratch.pieces[0], offsets into *out. */
enum bt_code tok_pre_tokenize(struct bt_tokenizer *t, const char *text, size_t n, bool first,
                              const char **out, struct bt_error *err);

/* Appends the ids of one pre-token. */
enum bt_code tok_bpe(struct bt_tokenizer *t, const char *word, size_t n, struct bt_ids *out,
                     struct bt_error *err);

/* Fills bytes[] and n_bytes[] from the decoders. */
enum bt_code tok_build_decoded(struct bt_tokenizer *t, struct bt_error *err);

/* Fails unless every key of the object is among the names (ended by NULL). */
enum bt_code tok_check_keys(const struct bt_tokenizer *t, const json_t *j, const char *where,
                            const char *const *names, struct bt_error *err);

#endif
