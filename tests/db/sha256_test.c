#include "db/sha256.h"

#include <criterion/criterion.h>

#include <string.h>

/* FIPS 180-4 examples, and lengths round the padding's edges computed by sha256sum. */
Test(sha256, known_digests)
{
    static const struct {
        const char *text;
        int repeat;
        const char *hex;
    } rows[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"a", 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
        {"a", 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bt_sha256 s;
        char hex[BT_SHA256_HEX_BYTES];
        bt_sha256_init(&s);
        for (int k = 0; k < rows[i].repeat; k++) {
            bt_sha256_add(&s, rows[i].text, strlen(rows[i].text));
        }
        bt_sha256_hex(&s, hex);
        cr_expect_str_eq(hex, rows[i].hex, "%s x %d", rows[i].text, rows[i].repeat);
    }
    char hex[BT_SHA256_HEX_BYTES];
    bt_sha256_text("abc", 3, hex);
    cr_expect_str_eq(hex, rows[1].hex);
}
