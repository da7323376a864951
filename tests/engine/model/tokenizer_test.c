#include "engine/core/rng.h"
#include "engine/model/json_file.h"
#include "engine/model/tokenizer.h"
#include "tests/engine/model/files.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TOKENIZERS BT_TEST_SOURCE_DIR "/tests/engine/model/tokenizers"

static struct bt_error err;

static struct bt_tokenizer *load(const char *path)
{
    struct bt_tokenizer *t = NULL;
    bt_error_clear(&err);
    cr_assert_eq(bt_tokenizer_load(path, &t, &err), BT_OK, "%s", err.msg);
    return t;
}

static struct bt_tokenizer *load_named(const char *name)
{
    return load(bt_test_path(TOKENIZERS, name));
}

static struct bt_tokenizer *load_berth(void)
{
    struct bt_tokenizer *t = NULL;
    cr_assert_eq(bt_tokenizer_load_dir(bt_test_model("berth-12m"), &t, &err), BT_OK, "%s", err.msg);
    return t;
}

static void encode(struct bt_tokenizer *t, const char *text, size_t n, bool skip_template,
                   struct bt_ids *ids)
{
    struct bt_encode_opts opts = {.skip_template = skip_template};
    ids->n = 0;
    cr_assert_eq(bt_tokenizer_encode(t, text, n, &opts, ids, &err), BT_OK, "%s", err.msg);
}

static const char *const GOLDEN[] = {"llama3.json", "qwen.json", "llama2.json", "metaspace.json"};

/* make.py wrote golden.json with an independent implementation. Its decoder puts U+FFFD where
 * bytes are no UTF-8 and takes an added token of Latin-1 letters for bytes; such texts are not in
 * the list. */
Test(tokenizer, agrees_with_the_reference_on_every_kind)
{
    json_t *golden;
    cr_assert_eq(
        bt_json_load_object(bt_test_path(TOKENIZERS, "golden.json"), 1 << 24, &golden, &err), BT_OK,
        "%s", err.msg);
    for (size_t g = 0; g < sizeof GOLDEN / sizeof *GOLDEN; g++) {
        struct bt_tokenizer *t = load_named(GOLDEN[g]);
        const json_t *rows = json_object_get(golden, GOLDEN[g]);
        struct bt_ids ids = {0};
        struct bt_bytes text = {0};
        cr_assert_gt(json_array_size(rows), 50);
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i);
            const json_t *want = json_object_get(row, "ids");
            const json_t *in = json_object_get(row, "text");
            const json_t *decoded = json_object_get(row, "decoded");
            encode(t, json_string_value(in), json_string_length(in), true, &ids);
            bool same = ids.n == (int64_t)json_array_size(want);
            for (int64_t k = 0; same && k < ids.n; k++) {
                same = ids.ids[k] == json_integer_value(json_array_get(want, (size_t)k));
            }
            cr_expect(same, "%s: text %zu: %s", GOLDEN[g], i, json_string_value(in));
            text.n = 0;
            cr_assert_eq(bt_tokenizer_decode(t, ids.ids, ids.n, false, &text, &err), BT_OK);
            cr_expect(text.n == json_string_length(decoded) &&
                          (text.n == 0 || memcmp(text.p, json_string_value(decoded), text.n) == 0),
                      "%s: decoded %zu: %.*s", GOLDEN[g], i, (int)text.n, text.p);
        }
        bt_ids_fini(&ids);
        bt_bytes_fini(&text);
        bt_tokenizer_destroy(t);
    }
    json_decref(golden);
}

/* The stream was encoded by the reference, so decoding and encoding it again proves both ways. */
Test(tokenizer, real_text_round_trips_to_the_reference_ids_at_a_megabyte_a_second)
{
    size_t n_bytes;
    unsigned char *raw = bt_test_read(bt_test_model("test_tokens_u16.bin"), &n_bytes);
    int64_t n = (int64_t)n_bytes / 2;
    int32_t *want = malloc((size_t)n * sizeof *want);
    for (int64_t i = 0; i < n; i++) {
        want[i] = raw[2 * i] | raw[2 * i + 1] << 8;
    }
    struct bt_tokenizer *t = load_berth();
    struct bt_bytes text = {0};
    struct bt_ids ids = {0};
    cr_assert_eq(bt_tokenizer_decode(t, want, n, false, &text, &err), BT_OK, "%s", err.msg);
    struct timespec from;
    struct timespec to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    encode(t, text.p, text.n, false, &ids);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    cr_expect_eq(ids.n, n);
    cr_expect_arr_eq(ids.ids, want, (size_t)n * sizeof *want);
    cr_log_info("%.1f MB/s", (double)text.n / seconds / 1e6);
    cr_expect_gt((double)text.n / seconds, 1e6, "%.0f bytes/s", (double)text.n / seconds);
    cr_expect_eq(bt_tokenizer_bos(t), 0);
    cr_expect_eq(bt_tokenizer_eos(t), 0);
    cr_expect_eq(bt_tokenizer_n_ids(t), 8192);
    cr_expect_str_eq(bt_tokenizer_token(t, 0), "<|endoftext|>");
    cr_expect(bt_tokenizer_is_special(t, 0) && !bt_tokenizer_is_special(t, 1));
    bt_bytes_fini(&text);
    bt_ids_fini(&ids);
    bt_tokenizer_destroy(t);
    free(want);
    free(raw);
}

static void round_trip(struct bt_tokenizer *t, const char *bytes, size_t n, const char *what)
{
    struct bt_ids ids = {0};
    struct bt_bytes text = {0};
    encode(t, bytes, n, true, &ids);
    cr_assert_eq(bt_tokenizer_decode(t, ids.ids, ids.n, false, &text, &err), BT_OK);
    cr_expect(text.n == n && (n == 0 || memcmp(text.p, bytes, n) == 0), "%s: %zu bytes", what, n);
    bt_ids_fini(&ids);
    bt_bytes_fini(&text);
}

/* qwen.json is left out: NFC changes text; metaspace.json too: it drops a leading space. */
Test(tokenizer, random_bytes_round_trip)
{
    struct bt_tokenizer *ts[] = {load_berth(), load_named("llama3.json"),
                                 load_named("llama2.json")};
    struct bt_rng rng;
    char bytes[4096];
    bt_rng_init(&rng, 5, "bytes", 0);
    for (int round = 0; round < 200; round++) {
        size_t n = (size_t)bt_rng_below(&rng, round < 150 ? 40 : sizeof bytes);
        for (size_t i = 0; i < n; i++) {
            uint64_t r = bt_rng_u64(&rng);
            /* U+2581 decodes to a space where it marks spaces, so its first byte is kept out. */
            bytes[i] = (round & 1) != 0 ? "ab \n\xc3\xa9\xf0\x9f\x98\x80"[r % 10] : (char)(r & 255);
            bytes[i] = bytes[i] == '\xe2' ? '\xe1' : bytes[i];
        }
        for (size_t i = 0; i < sizeof ts / sizeof *ts; i++) {
            round_trip(ts[i], bytes, n, i == 0 ? "berth" : i == 1 ? "llama3" : "llama2");
        }
    }
    for (size_t i = 0; i < sizeof ts / sizeof *ts; i++) {
        bt_tokenizer_destroy(ts[i]);
    }
}

/* A whole number of characters: only invalid bytes may stand alone, never part of a valid one. */
static bool ends_inside_character(const char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c = (unsigned char)p[n - k];
        if (c >= 0xc2 && c <= 0xf4) {
            return k < (size_t)(c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2);
        }
        if ((c & 0xc0) != 0x80) {
            return false;
        }
    }
    return false;
}

Test(tokenizer, streaming_never_splits_a_character_and_equals_decoding_at_once)
{
    static const char text[] = " caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x91\xa9\xe2\x80\x8d"
                               "\xf0\x9f\x9a\x80 plain \xe1\x84\x80";
    for (size_t g = 0; g < sizeof GOLDEN / sizeof *GOLDEN; g++) {
        struct bt_tokenizer *t = load_named(GOLDEN[g]);
        struct bt_ids ids = {0};
        struct bt_bytes whole = {0};
        struct bt_bytes streamed = {0};
        struct bt_decode_stream s;
        encode(t, text, sizeof text - 1, true, &ids);
        cr_assert_eq(bt_tokenizer_decode(t, ids.ids, ids.n, true, &whole, &err), BT_OK);
        bt_decode_stream_init(&s, t, true);
        for (int64_t i = 0; i < ids.n; i++) {
            cr_assert_eq(bt_decode_stream_push(&s, ids.ids[i], &streamed, &err), BT_OK);
            cr_expect(!ends_inside_character(streamed.p, streamed.n), "%s: token %lld", GOLDEN[g],
                      (long long)i);
        }
        cr_assert_eq(bt_decode_stream_finish(&s, &streamed, &err), BT_OK);
        cr_expect(whole.n == streamed.n && memcmp(whole.p, streamed.p, whole.n) == 0);
        bt_ids_fini(&ids);
        bt_bytes_fini(&whole);
        bt_bytes_fini(&streamed);
        bt_tokenizer_destroy(t);
    }
}

Test(tokenizer, streaming_lets_go_of_bytes_that_no_longer_can_be_a_character)
{
    struct bt_tokenizer *t = load_named("llama2.json");
    struct bt_bytes out = {0};
    struct bt_decode_stream s;
    bt_decode_stream_init(&s, t, false);
    cr_assert_eq(bt_decode_stream_push(&s, bt_tokenizer_find(t, "<0xE6>"), &out, &err), BT_OK);
    cr_expect_eq(out.n, 0, "a lead byte waits");
    cr_assert_eq(bt_decode_stream_push(&s, bt_tokenizer_find(t, "<0xE6>"), &out, &err), BT_OK);
    cr_expect_eq(out.n, 1, "a second lead byte ends the hope of the first");
    cr_assert_eq(bt_decode_stream_push(&s, bt_tokenizer_find(t, "<0x97>"), &out, &err), BT_OK);
    cr_expect_eq(out.n, 1);
    cr_assert_eq(bt_decode_stream_push(&s, bt_tokenizer_find(t, "<0xA5>"), &out, &err), BT_OK);
    cr_expect_eq(out.n, 4);
    cr_assert_eq(bt_decode_stream_push(&s, bt_tokenizer_find(t, "<0xF0>"), &out, &err), BT_OK);
    cr_expect_eq(out.n, 4);
    cr_assert_eq(bt_decode_stream_finish(&s, &out, &err), BT_OK);
    cr_expect_eq(out.n, 5);
    cr_expect_arr_eq(out.p, "\xe6\xe6\x97\xa5\xf0", 5);
    cr_expect_eq(bt_decode_stream_push(&s, bt_tokenizer_n_ids(t), &out, &err), BT_ERR_ARG);
    bt_bytes_fini(&out);
    bt_tokenizer_destroy(t);
}

Test(tokenizer, template_adds_bos_and_eos_once)
{
    struct bt_tokenizer *t = load_named("llama2.json");
    struct bt_ids once = {0};
    struct bt_ids twice = {0};
    encode(t, "hi", 2, false, &once);
    cr_expect_eq(once.ids[0], 1);
    cr_expect_eq(once.ids[once.n - 1], 2);
    cr_expect_neq(once.ids[1], 1);
    encode(t, "<s>hi</s>", 9, false, &twice);
    cr_expect(twice.n == once.n && memcmp(twice.ids, once.ids, (size_t)once.n * 4) == 0);
    encode(t, "", 0, false, &twice);
    cr_expect_eq(twice.n, 2);
    bt_ids_fini(&once);
    bt_ids_fini(&twice);
    bt_tokenizer_destroy(t);
}

Test(tokenizer, plain_text_keeps_control_tokens_out)
{
    struct bt_tokenizer *t = load_berth();
    struct bt_ids ids = {0};
    struct bt_encode_opts opts = {.plain_text = true};
    cr_assert_eq(bt_tokenizer_encode(t, "<|endoftext|>", 13, NULL, &ids, &err), BT_OK);
    cr_expect_eq(ids.n, 1);
    ids.n = 0;
    cr_assert_eq(bt_tokenizer_encode(t, "<|endoftext|>", 13, &opts, &ids, &err), BT_OK);
    cr_expect_gt(ids.n, 1);
    for (int64_t i = 0; i < ids.n; i++) {
        cr_expect_neq(ids.ids[i], 0);
    }
    bt_ids_fini(&ids);
    bt_tokenizer_destroy(t);
}

Test(tokenizer, special_tokens_are_left_out_of_text_on_request)
{
    struct bt_tokenizer *t = load_named("llama2.json");
    struct bt_ids ids = {0};
    struct bt_bytes text = {0};
    encode(t, "hi there", 8, false, &ids);
    cr_assert_eq(bt_tokenizer_decode(t, ids.ids, ids.n, true, &text, &err), BT_OK);
    cr_expect(text.n == 8 && memcmp(text.p, "hi there", 8) == 0, "%.*s", (int)text.n, text.p);
    bt_ids_fini(&ids);
    bt_bytes_fini(&text);
    bt_tokenizer_destroy(t);
}

Test(tokenizer, vocabulary_hash_tells_tokenizers_apart)
{
    struct bt_tokenizer *a = load_berth();
    struct bt_tokenizer *b = load(bt_test_model("berth-1m/tokenizer.json"));
    struct bt_tokenizer *c = load_named("llama3.json");
    cr_expect_eq(bt_tokenizer_vocab_hash(a), bt_tokenizer_vocab_hash(b));
    cr_expect_neq(bt_tokenizer_vocab_hash(a), bt_tokenizer_vocab_hash(c));
    cr_expect_eq(bt_tokenizer_check_same(a, b, &err), BT_OK);
    cr_expect_eq(bt_tokenizer_check_same(a, c, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "id 0 is \"<|endoftext|>\" in"), "%s", err.msg);
    bt_error_clear(&err);
    cr_expect_eq(bt_tokenizer_check_vocab(a, 8192, &err), BT_OK);
    cr_expect_eq(bt_tokenizer_check_vocab(a, 8191, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "has id 8191, but the model's vocab_size is 8191"), "%s",
                       err.msg);
    bt_tokenizer_destroy(a);
    bt_tokenizer_destroy(b);
    bt_tokenizer_destroy(c);
}

#define VOCAB  "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MERGES "\"merges\":[\"a b\"]"
#define MODEL  "\"model\":{\"type\":\"BPE\"," VOCAB "," MERGES "}"
#define DEC    "\"decoder\":{\"type\":\"ByteLevel\"}"
#define SPLIT(regex)                                                                               \
    "{" MODEL "," DEC ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex     \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}}"

static const struct {
    const char *name;
    const char *json;
    const char *message;
} BAD[] = {
    {"not JSON", "{", ":1:"},
    {"not an object", "[]", "expected a JSON object"},
    {"no model", "{" DEC "}", "model: expected an object, got nothing"},
    {"other model", "{\"model\":{\"type\":\"Unigram\"}}", "model.type: Unigram is not supported"},
    {"unknown top key", "{" MODEL "," DEC ",\"chat\":1}", "tokenizer.json.chat"},
    {"unknown model key", "{\"model\":{\"type\":\"BPE\"," VOCAB "," MERGES ",\"x\":1}," DEC "}",
     "model.x"},
    {"dropout", "{\"model\":{\"type\":\"BPE\"," VOCAB "," MERGES ",\"dropout\":0.1}," DEC "}",
     "model.dropout"},
    {"prefix", "{\"model\":{" VOCAB "," MERGES ",\"continuing_subword_prefix\":\"##\"}," DEC "}",
     "model.continuing_subword_prefix"},
    {"suffix", "{\"model\":{" VOCAB "," MERGES ",\"end_of_word_suffix\":\"</w>\"}," DEC "}",
     "model.end_of_word_suffix"},
    {"vocab not an object", "{\"model\":{\"vocab\":[]," MERGES "}," DEC "}", "model.vocab"},
    {"empty vocab", "{\"model\":{\"vocab\":{},\"merges\":[]}," DEC "}", "model.vocab: empty"},
    {"negative id", "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}," DEC "}", "expected an id"},
    {"huge id", "{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}," DEC "}",
     "expected an id 0..4194303"},
    {"id twice", "{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}," DEC "}",
     "id 0 is both \"a\" and \"b\""},
    {"merge of three", "{\"model\":{" VOCAB ",\"merges\":[\"a b c\"]}," DEC "}",
     "model.merges[0]: expected"},
    {"merge not text", "{\"model\":{" VOCAB ",\"merges\":[[1,2]]}," DEC "}",
     "model.merges[0]: expected"},
    {"merge result unknown", "{\"model\":{" VOCAB ",\"merges\":[\"b a\"]}," DEC "}",
     "model.merges[0]: \"ba\" is not in the vocabulary"},
    {"merge part unknown", "{\"model\":{" VOCAB ",\"merges\":[[\"a\",\"z\"]]}," DEC "}",
     "model.merges[0]: \"z\" is not in the vocabulary"},
    {"no merges", "{\"model\":{" VOCAB "}," DEC "}", "model.merges: expected an array"},
    {"unk unknown", "{\"model\":{" VOCAB "," MERGES ",\"unk_token\":\"?\"}," DEC "}",
     "model.unk_token"},
    {"flag not boolean", "{\"model\":{" VOCAB "," MERGES ",\"byte_fallback\":1}," DEC "}",
     "model.byte_fallback: expected true or false"},
    {"no decoder", "{" MODEL "}", "decoder: null is not supported"},
    {"other decoder", "{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}",
     "decoder.type: \"WordPiece\" is not supported"},
    {"decoder after Fuse",
     "{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
     "{\"type\":\"ByteLevel\"}]}}",
     "decoder.decoders[1].type: \"ByteLevel\" after Fuse"},
    {"Strip at the end after Fuse",
     "{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
     "{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}]}}",
     "decoder.decoders[1]: after Fuse"},
    {"other normalizer", "{" MODEL "," DEC ",\"normalizer\":{\"type\":\"Lowercase\"}}",
     "normalizer.type: \"Lowercase\" is not supported"},
    {"normalizer in a sequence",
     "{" MODEL "," DEC ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
     "{\"type\":\"Precompiled\"}]}}",
     "normalizer.normalizers[1].type: \"Precompiled\""},
    {"normalizer without type", "{" MODEL "," DEC ",\"normalizer\":{}}",
     "normalizer.type: expected a string"},
    {"other pre-tokenizer", "{" MODEL "," DEC ",\"pre_tokenizer\":{\"type\":\"Whitespace\"}}",
     "pre_tokenizer.type: \"Whitespace\" is not supported"},
    {"pre-tokenizer after ByteLevel",
     "{" MODEL "," DEC ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
     "{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}}",
     "pre_tokenizer.pretokenizers[1].type: \"Digits\" after ByteLevel"},
    {"unknown behaviour",
     "{" MODEL "," DEC ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},"
     "\"behavior\":\"Sideways\"}}",
     "pre_tokenizer.behavior: Sideways"},
    {"unknown pre-tokenizer key",
     "{" MODEL "," DEC ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"mode\":1}}",
     "pre_tokenizer.mode"},
    {"regex syntax", SPLIT("(a"), "pre_tokenizer.pattern: regex \"(a\""},
    {"regex escape", SPLIT("\\\\ba"), "\\b is not supported"},
    {"regex hexadecimal class", SPLIT("\\\\h"), "\\h is not supported"},
    {"regex intersection", SPLIT("[a-z&&[^b]]"), "an intersection of classes is not supported"},
    {"regex nested class", SPLIT("[a[bc]]"), "a class inside a class is not supported"},
    {"regex possessive interval", SPLIT("a{1,3}+"), "a possessive interval is not supported"},
    {"regex group", SPLIT("(?m:a)"), "this kind of group is not supported"},
    {"pattern without a kind",
     "{" MODEL "," DEC ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{}}}",
     "pre_tokenizer.pattern: expected one of String and Regex"},
    {"other post-processor", "{" MODEL "," DEC ",\"post_processor\":{\"type\":\"BertProcessing\"}}",
     "post_processor.type: \"BertProcessing\" is not supported"},
    {"template without text",
     "{" MODEL "," DEC ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],"
     "\"pair\":[],\"special_tokens\":{}}}",
     "post_processor.single: no Sequence in it"},
    {"template id unknown",
     "{" MODEL "," DEC ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
     "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
     "],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[9],\"tokens\":[]}}}}",
     "post_processor.special_tokens.<s>.ids[0]: not a token's id"},
    {"added id taken", "{" MODEL "," DEC ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}",
     "id 1 is both \"b\" and \"x\""},
    {"added token with two ids",
     "{" MODEL "," DEC ",\"added_tokens\":[{\"id\":5,\"content\":\"ab\"}]}",
     "added_tokens[0]: \"ab\" has id 2 already"},
    {"added token empty", "{" MODEL "," DEC ",\"added_tokens\":[{\"id\":5,\"content\":\"\"}]}",
     "added_tokens[0].content"},
    {"added key unknown",
     "{" MODEL "," DEC ",\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"y\":1}]}",
     "added_tokens[0].y"},
    {"added not an array", "{" MODEL "," DEC ",\"added_tokens\":{}}",
     "added_tokens: expected an array"},
    {"duplicate token", "{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}," DEC "}",
     "duplicate object key"},
};

Test(tokenizer, names_what_it_does_not_support)
{
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct bt_tokenizer *t = NULL;
        bt_error_clear(&err);
        const char *path = bt_test_write("tokenizer.json", BAD[i].json, strlen(BAD[i].json));
        cr_expect_eq(bt_tokenizer_load(path, &t, &err), BT_ERR_INPUT, "%s", BAD[i].name);
        cr_expect_not_null(strstr(err.msg, BAD[i].message), "%s: %s", BAD[i].name, err.msg);
        cr_expect_null(t);
    }
    struct bt_tokenizer *t = NULL;
    bt_error_clear(&err);
    cr_expect_eq(bt_tokenizer_load("/nonexistent", &t, &err), BT_ERR_NOTFOUND);
}

Test(tokenizer, says_which_character_the_vocabulary_lacks)
{
    static const char json[] = "{" MODEL "," DEC "}";
    struct bt_tokenizer *t = load(bt_test_write("t.json", json, sizeof json - 1));
    struct bt_ids ids = {0};
    cr_assert_eq(bt_tokenizer_encode(t, "aab", 3, NULL, &ids, &err), BT_OK);
    cr_expect_eq(ids.n, 2);
    cr_expect_eq(ids.ids[1], 2);
    cr_expect_eq(bt_tokenizer_encode(t, "az", 2, NULL, &ids, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "\"z\" (first byte 0x7A)"), "%s", err.msg);
    bt_ids_fini(&ids);
    bt_tokenizer_destroy(t);
}

Test(tokenizer, config_names_a_token_that_must_exist)
{
    static const char json[] = "{" MODEL "," DEC "}";
    static const char good[] = "{\"bos_token\":{\"content\":\"a\"},\"eos_token\":\"b\"}";
    static const char bad[] = "{\"eos_token\":\"</s>\"}";
    struct bt_tokenizer *t = NULL;
    bt_test_write("tokenizer.json", json, sizeof json - 1);
    bt_test_write("tokenizer_config.json", good, sizeof good - 1);
    cr_assert_eq(bt_tokenizer_load_dir(bt_test_dir(), &t, &err), BT_OK, "%s", err.msg);
    cr_expect_eq(bt_tokenizer_bos(t), 0);
    cr_expect_eq(bt_tokenizer_eos(t), 1);
    bt_tokenizer_destroy(t);
    bt_test_write("tokenizer_config.json", bad, sizeof bad - 1);
    cr_expect_eq(bt_tokenizer_load_dir(bt_test_dir(), &t, &err), BT_ERR_INPUT);
    cr_expect_not_null(strstr(err.msg, "eos_token: </s> is not a token"), "%s", err.msg);
}

/* A file with changed bytes either fails with a message or gives a tokenizer that works. */
Test(tokenizer, survives_mutated_files)
{
    static const char alphabet[] = "0123456789abdefghilnorstuvxyz<>\\p.+?*[]{},:\"";
    size_t n;
    unsigned char *base = bt_test_read(bt_test_path(TOKENIZERS, "qwen.json"), &n);
    unsigned char *file = malloc(n);
    struct bt_rng rng;
    int loaded = 0;
    bt_rng_init(&rng, 3, "mutate", 1);
    for (int round = 0; round < 1000; round++) {
        memcpy(file, base, n);
        int64_t n_changes = 1 + (int64_t)bt_rng_below(&rng, 2);
        for (int64_t c = 0; c < n_changes; c++) {
            /* Half of the changes fall on the steps before the vocabulary. */
            size_t at = (size_t)bt_rng_below(&rng, bt_rng_below(&rng, 2) == 0 ? 1600 : n);
            file[at] = (unsigned char)alphabet[bt_rng_below(&rng, sizeof alphabet - 1)];
        }
        struct bt_tokenizer *t = NULL;
        bt_error_clear(&err);
        enum bt_code code = bt_tokenizer_load(bt_test_write("m.json", file, n), &t, &err);
        cr_assert(code == BT_OK || (code == BT_ERR_INPUT && err.msg[0] != '\0'), "round %d", round);
        if (code == BT_OK) {
            struct bt_ids ids = {0};
            struct bt_bytes text = {0};
            loaded++;
            code = bt_tokenizer_encode(t, "It's 42 <tool>\xc3\xa9", 16, NULL, &ids, &err);
            cr_assert(code == BT_OK || err.msg[0] != '\0');
            if (code == BT_OK) {
                cr_assert_eq(bt_tokenizer_decode(t, ids.ids, ids.n, false, &text, &err), BT_OK);
            }
            bt_ids_fini(&ids);
            bt_bytes_fini(&text);
        }
        bt_tokenizer_destroy(t);
    }
    cr_expect(loaded > 20 && loaded < 980, "%d", loaded);
    free(base);
    free(file);
}
