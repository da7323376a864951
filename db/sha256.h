/* SHA-256 (FIPS 180-4), so that what the store says of a scenario or trace can be checked with
 * sha256sum. Threading: one state, one thread. */
#ifndef BT_DB_SHA256_H
#define BT_DB_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BT_SHA256_HEX_BYTES = 65 }; /* 64 digits and a zero */

struct bt_sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    unsigned char block[64];
};

void bt_sha256_init(struct bt_sha256 *s);
void bt_sha256_add(struct bt_sha256 *s, const void *bytes, size_t n_bytes);

/* Lower-case digits of all that was added; the state must be initialised again afterwards. */
void bt_sha256_hex(struct bt_sha256 *s, char out[BT_SHA256_HEX_BYTES]);

/* Of one text in memory. */
void bt_sha256_text(const void *bytes, size_t n_bytes, char out[BT_SHA256_HEX_BYTES]);

/* All of a file; false when it cannot be read. */
bool bt_sha256_file(const char *path, char out[BT_SHA256_HEX_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
