#include "cli/import_path.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024, PARTS_MAX = 128, META_LEVELS = 3 };

static const char *const ENGINES[] = {"vllm", "trtllm", "sglang", "nccl"};
enum { N_ENGINES = sizeof ENGINES / sizeof *ENGINES };

/* "vllm" or "vllm-0.24.0" alone; with a version after it when `next` is one. */
static void read_stack(struct bt_import_path *p, const char *text, const char *next)
{
    for (int32_t i = 0; i < N_ENGINES && p->stack[0] == '\0'; i++) {
        size_t n = strlen(ENGINES[i]);
        if (strncmp(text, ENGINES[i], n) != 0) {
            continue;
        }
        if (text[n] == '-' && isdigit((unsigned char)text[n + 1])) {
            (void)snprintf(p->stack, sizeof p->stack, "%s", text);
        } else if (text[n] == '\0' && next != NULL && isdigit((unsigned char)next[0])) {
            (void)snprintf(p->stack, sizeof p->stack, "%s-%s", text, next);
        }
    }
}

/* A piece of the path; `next` is what follows it in the path. */
static void read_piece(struct bt_import_path *p, const struct bt_catalog *catalog, const char *text,
                       const char *next)
{
    const struct bt_catalog_gpu *gpu = NULL;
    const struct bt_catalog_model *model = NULL;
    if (p->gpu == NULL && bt_catalog_find_gpu(catalog, text, "gpu", &gpu, NULL) == BT_OK) {
        p->gpu = gpu;
    }
    if (p->model == NULL && bt_catalog_find_model(catalog, text, "model", &model, NULL) == BT_OK) {
        p->model = model;
    }
    bool dtype =
        strcmp(text, "bf16") == 0 || strcmp(text, "fp16") == 0 || strcmp(text, "fp32") == 0;
    if (dtype && p->dtype[0] == '\0') {
        (void)snprintf(p->dtype, sizeof p->dtype, "%s", text);
    }
    if (p->tp == 0 && strncmp(text, "tp", 2) == 0 && isdigit((unsigned char)text[2])) {
        p->tp = (int32_t)strtol(text + 2, NULL, 10);
    }
    read_stack(p, text, next);
}

/* Without ".csv" and the like; a version keeps its points. */
static size_t stem_length(const char *name)
{
    static const char *const endings[] = {".csv", ".txt", ".json", ".jsonl"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t k = strlen(endings[i]);
        if (n > k && strcmp(name + n - k, endings[i]) == 0) {
            return n - k;
        }
    }
    return n;
}

/* The pieces of a file's name: between "__", and between single "_". */
static void read_name(struct bt_import_path *p, const struct bt_catalog *catalog, const char *name)
{
    for (const char *separator = "__"; *separator != '\0'; separator++) {
        char text[PATH_BYTES];
        (void)snprintf(text, sizeof text, "%.*s", (int)stem_length(name), name);
        for (char *at = text; at != NULL;) {
            char *end = strstr(at, separator);
            if (end != NULL) {
                *end = '\0';
            }
            read_piece(p, catalog, at, NULL);
            at = end != NULL ? end + strlen(separator) : NULL;
        }
    }
}

/* "vllm_version: 0.19.0" of the meta.yaml in the file's folder or one above. */
static void read_meta(struct bt_import_path *p, const char *path)
{
    char folder[PATH_BYTES];
    (void)snprintf(folder, sizeof folder, "%s", path);
    for (int32_t i = 0; i < META_LEVELS && p->stack[0] == '\0'; i++) {
        char *slash = strrchr(folder, '/');
        if (slash == NULL) {
            return;
        }
        *slash = '\0';
        char meta[PATH_BYTES + 16];
        (void)snprintf(meta, sizeof meta, "%s/meta.yaml", folder);
        FILE *f = fopen(meta, "r");
        char line[256];
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            char version[32];
            if (sscanf(line, "vllm_version: %31[0-9a-zA-Z.]", version) == 1) {
                (void)snprintf(p->stack, sizeof p->stack, "vllm-%s", version);
            }
        }
        if (f != NULL) {
            (void)fclose(f);
        }
    }
}

void bt_import_path_read(const char *path, const struct bt_catalog *catalog,
                         struct bt_import_path *out)
{
    *out = (struct bt_import_path){0};
    char text[PATH_BYTES];
    (void)snprintf(text, sizeof text, "%s", path);
    char *parts[PARTS_MAX];
    int32_t n = 0;
    char *rest = NULL;
    for (char *part = strtok_r(text, "/", &rest); part != NULL && n < PARTS_MAX;
         part = strtok_r(NULL, "/", &rest)) {
        parts[n++] = part;
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        if (i == n - 1) {
            read_name(out, catalog, parts[i]);
        }
        if (i > 0) { /* "meta-llama/Llama-3.1-8B" is one name */
            char both[PATH_BYTES];
            (void)snprintf(both, sizeof both, "%.500s/%.500s", parts[i - 1], parts[i]);
            read_piece(out, catalog, both, NULL);
        }
        read_piece(out, catalog, parts[i], i + 1 < n ? parts[i + 1] : NULL);
    }
    read_meta(out, path);
}
