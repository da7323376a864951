/* The tables of docs/SURFACES.md, from the shipped calibrations:
 *
 *   bt_surface_report
 *
 * Leave-one-out error of every surface, then every GPU predicted from the others. */
#include "db/calibrations/calibrations.h"
#include "db/catalog.h"
#include "sim/cost/calib.h"
#include "sim/cost/surface.h"
#include "sim/cost/transfer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *format_name(const struct bt_surface *s, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s/%s/%s", bt_num_name(s->format.weights),
                   bt_num_name(s->format.activations), bt_num_name(s->format.kv));
    return out;
}

static void print_surfaces(const struct bt_surface_set *set)
{
    (void)printf(
        "| GPU | stack | operation | weights/activations/KV | samples | left out | median | "
        "P90 | a whole coordinate out | a whole shape out | falls |\n"
        "| --- | --- | --- | --- | --: | --: | --: | --: | --: | --: | --- |\n");
    for (int32_t i = 0; i < set->n_surfaces; i++) {
        const struct bt_surface *s = set->surfaces[i];
        const struct bt_lattice *g = &s->grid;
        char format[64];
        char rest[48] = "one shape";
        if (g->off_rest.n > 0) {
            (void)snprintf(rest, sizeof rest, "%.1f / %.1f%%", 100 * g->off_rest.median,
                           100 * g->off_rest.p90);
        }
        (void)printf(
            "| %s | %s%s%s | %s | %s | %lld | %lld | %.1f%% | %.1f%% | %.1f / %.1f%% | %s | "
            "%s |\n",
            s->gpu, s->stack, s->version[0] == '\0' ? "" : "-", s->version, bt_op_name(s->op),
            format_name(s, format, sizeof format), (long long)s->n_samples, (long long)g->along.n,
            100 * g->along.median, 100 * g->along.p90, 100 * g->off_main.median,
            100 * g->off_main.p90, rest, g->switches ? "at switches" : "never");
    }
}

static bool same_kind(const struct bt_surface *a, const struct bt_surface *b)
{
    return a->op == b->op && a->format.weights == b->format.weights &&
           a->format.activations == b->format.activations && a->format.kv == b->format.kv &&
           strcmp(a->stack, b->stack) == 0;
}

/* One line a surface that others of its kind can predict. */
static void print_transfers(const struct bt_surface_set *set, const struct bt_catalog *catalog)
{
    (void)printf("| predicted | stack | operation | format | from | median | P90 | as in serving | "
                 "bias | bound | covered | GPUs left out |\n"
                 "| --- | --- | --- | --- | --- | --: | --: | --: | --: | --: | --: | --: |\n");
    for (int32_t i = 0; i < set->n_surfaces; i++) {
        const struct bt_surface *truth = set->surfaces[i];
        struct bt_relative relatives[BT_TRANSFER_RELATIVES_MAX];
        int32_t n = 0;
        struct bt_error err = {0};
        const struct bt_catalog_gpu *gpu = NULL;
        char from[128] = "";
        for (int32_t k = 0; k < set->n_surfaces && n < BT_TRANSFER_RELATIVES_MAX; k++) {
            const struct bt_surface *s = set->surfaces[k];
            if (!same_kind(s, truth) || strcmp(s->gpu, truth->gpu) == 0) {
                continue;
            }
            if (bt_catalog_find_gpu(catalog, s->gpu, "gpu", &gpu, &err) != BT_OK) {
                (void)fprintf(stderr, "%s\n", err.msg);
                return;
            }
            relatives[n++] = (struct bt_relative){s, &gpu->gpu};
            (void)snprintf(from + strlen(from), sizeof from - strlen(from), "%s%s",
                           from[0] == '\0' ? "" : ", ", s->gpu);
        }
        struct bt_transfer t;
        if (n == 0 || bt_catalog_find_gpu(catalog, truth->gpu, "gpu", &gpu, &err) != BT_OK ||
            bt_transfer_init(&t, relatives, n, &gpu->gpu, &err) != BT_OK) {
            continue;
        }
        struct bt_lattice_error e;
        struct bt_lattice_error cold;
        double covered = 0;
        if (bt_transfer_error(&t, truth, false, &e, NULL, &err) != BT_OK || e.n == 0 ||
            bt_transfer_error(&t, truth, true, &cold, &covered, &err) != BT_OK) {
            continue;
        }
        char format[64];
        (void)printf("| %s | %s | %s | %s | %s | %.0f%% | %.0f%% | %.0f / %.0f%% | %+.2f | x%.2f | "
                     "%.0f%% | %d |\n",
                     truth->gpu, truth->stack, bt_op_name(truth->op),
                     format_name(truth, format, sizeof format), from, 100 * e.median, 100 * e.p90,
                     100 * cold.median, 100 * cold.p90, cold.log_bias, exp(t.log_bound),
                     100 * covered, t.n_left_out);
    }
}

int main(void)
{
    struct bt_sample_set samples;
    struct bt_surface_set set;
    struct bt_catalog *catalog = NULL;
    struct bt_error err = {0};
    bt_sample_set_init(&samples);
    for (const struct bt_embedded *e = bt_calibration_texts; e->name != NULL; e++) {
        struct bt_import_text file = {e->text, e->size_bytes, e->name};
        if (bt_calib_read(&file, &samples, &err) != BT_OK) {
            (void)fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
    }
    if (bt_surface_set_init(&set, &samples, &err) != BT_OK ||
        bt_catalog_open(NULL, 0, &catalog, &err) != BT_OK) {
        (void)fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    print_surfaces(&set);
    (void)printf("\n");
    print_transfers(&set, catalog);
    bt_catalog_close(catalog);
    bt_surface_set_fini(&set);
    bt_sample_set_fini(&samples);
    return 0;
}
