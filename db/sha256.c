#include "db/sha256.h"

#include <stdio.h>
#include <string.h>

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void compress(uint32_t h[8], const unsigned char *block)
{
    uint32_t w[64];
    for (int t = 0; t < 16; t++) {
        const unsigned char *p = block + (size_t)4 * (size_t)t;
        w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, h, sizeof v);
    for (int t = 0; t < 64; t++) {
        uint32_t s1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[t] + w[t];
        uint32_t s0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += v[i];
    }
}

void bt_sha256_init(struct bt_sha256 *s)
{
    *s = (struct bt_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                  0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void bt_sha256_add(struct bt_sha256 *s, const void *bytes, size_t n_bytes)
{
    const unsigned char *p = bytes;
    while (n_bytes > 0) {
        size_t at = s->n_bytes % 64;
        size_t n = 64 - at < n_bytes ? 64 - at : n_bytes;
        memcpy(s->block + at, p, n);
        s->n_bytes += n;
        p += n;
        n_bytes -= n;
        if (s->n_bytes % 64 == 0) {
            compress(s->h, s->block);
        }
    }
}

void bt_sha256_hex(struct bt_sha256 *s, char out[BT_SHA256_HEX_BYTES])
{
    static const unsigned char pad[64] = {0x80};
    uint64_t bits = s->n_bytes * 8;
    unsigned char tail[8];
    for (int i = 0; i < 8; i++) {
        tail[i] = (unsigned char)(bits >> (56 - 8 * i));
    }
    size_t at = s->n_bytes % 64;
    bt_sha256_add(s, pad, at < 56 ? 56 - at : 120 - at);
    bt_sha256_add(s, tail, sizeof tail);
    for (int i = 0; i < 8; i++) {
        (void)snprintf(out + 8 * i, BT_SHA256_HEX_BYTES - (size_t)(8 * i), "%08x", s->h[i]);
    }
}

void bt_sha256_text(const void *bytes, size_t n_bytes, char out[BT_SHA256_HEX_BYTES])
{
    struct bt_sha256 s;
    bt_sha256_init(&s);
    bt_sha256_add(&s, bytes, n_bytes);
    bt_sha256_hex(&s, out);
}

bool bt_sha256_file(const char *path, char out[BT_SHA256_HEX_BYTES])
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return false;
    }
    unsigned char piece[4096];
    struct bt_sha256 s;
    bt_sha256_init(&s);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) {
        bt_sha256_add(&s, piece, n);
    }
    bool good = ferror(f) == 0;
    (void)fclose(f);
    bt_sha256_hex(&s, out);
    return good;
}
