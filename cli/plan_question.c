#include "cli/plan_question.h"

#include "cli/config_opts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A Lua string literal. */
static void print_quoted(FILE *f, const char *text)
{
    fputc('"', f);
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\') {
            fprintf(f, "\\%c", c);
        } else if (c < 32) {
            fprintf(f, "\\%d", c);
        } else {
            fputc(c, f);
        }
    }
    fputc('"', f);
}

/* A speculation's text as the table that says the same. */
static void print_spec(FILE *f, const struct bt_spec_config *s)
{
    switch (s->kind) {
    case BT_SPEC_NONE:
        fprintf(f, "false");
        return;
    case BT_SPEC_DRAFT:
        fprintf(f, "{ draft = ");
        print_quoted(f, s->draft);
        break;
    case BT_SPEC_SELF:
        fprintf(f, "{ self = %d", s->self_layers);
        break;
    case BT_SPEC_MEDUSA:
        fprintf(f, "{ medusa = %d", s->medusa_heads);
        break;
    }
    fprintf(f, ", k = %d", s->k);
    if (s->n_acceptance > 0) {
        fprintf(f, ", acceptance = {");
        for (int32_t i = 0; i < s->n_acceptance; i++) {
            fprintf(f, "%s %.15g", i == 0 ? "" : ",", s->acceptance[i]);
        }
        fprintf(f, " }");
    }
    if (s->temperature > 0) {
        fprintf(f, ", temperature = %.15g", s->temperature);
    }
    if (s->text[0] != '\0') {
        fprintf(f, ", text = ");
        print_quoted(f, s->text);
    }
    if (s->k_adaptive) {
        fprintf(f, ", adaptive = true");
    }
    if (s->off_above_batch > 0) {
        fprintf(f, ", off_above_batch = %d", s->off_above_batch);
    }
    fprintf(f, " }");
}

static void print_value(FILE *f, const struct bt_config *c, const struct bt_config_field *field)
{
    char text[BT_PATH_BYTES];
    bt_config_get(c, field, text, sizeof text);
    bool number = field->type != BT_FIELD_NAME && field->type != BT_FIELD_ENUM &&
                  strspn(text, "0123456789.+-e") == strlen(text) && strstr(text, "..") == NULL;
    if (field->type == BT_FIELD_SPEC) {
        print_spec(f, &c->spec);
    } else if (field->type == BT_FIELD_BOOL) {
        fprintf(f, "%s", strcmp(text, "on") == 0 ? "true" : "false");
    } else if (number) {
        fprintf(f, "%s", text);
    } else {
        print_quoted(f, text);
    }
}

void bt_config_print_lua(FILE *f, const struct bt_config *c)
{
    const char *open = "";
    size_t open_bytes = 0;
    for (const struct bt_config_field *field = bt_config_fields; field->path != NULL; field++) {
        if (bt_config_is_default(c, field)) {
            continue;
        }
        const char *dot = strchr(field->path, '.');
        size_t prefix = dot == NULL ? 0 : (size_t)(dot - field->path);
        bool same = prefix == open_bytes && strncmp(field->path, open, prefix) == 0;
        if (open_bytes > 0 && !same) {
            fprintf(f, " },\n");
            open_bytes = 0;
        }
        if (prefix > 0 && !same) {
            fprintf(f, "  %.*s = { ", (int)prefix, field->path);
        } else if (prefix > 0) {
            fprintf(f, ", ");
        } else {
            fprintf(f, "  ");
        }
        open = field->path;
        open_bytes = prefix;
        fprintf(f, "%s = ", dot == NULL ? field->path : dot + 1);
        print_value(f, c, field);
        if (prefix == 0) {
            fprintf(f, ",\n");
        }
    }
    if (open_bytes > 0) {
        fprintf(f, " },\n");
    }
}

/* Every GPU of the catalog that has a price, so that the ranking is by cost. */
static void print_gpus(FILE *f, const struct bt_catalog *catalog)
{
    struct bt_price_list prices;
    bool priced = bt_price_list_init(&prices, catalog, NULL, NULL, NULL) == BT_OK;
    fprintf(f, "  gpu = {");
    const char *sep = "";
    for (int32_t i = 0; i < bt_catalog_n_gpus(catalog); i++) {
        const char *name = bt_catalog_gpu_at(catalog, i)->gpu.name;
        if (priced && !isnan(bt_price_list_get(&prices, name))) {
            fprintf(f, "%s \"%s\"", sep, name);
            sep = ",";
        }
    }
    fprintf(f, " },\n");
}

static void print_slo(FILE *f, const struct bt_run_opts *run)
{
    fprintf(f, "  slo = {");
    for (int32_t m = 0; m < BT_N_SLO_METRICS; m++) {
        bool open = false;
        for (int32_t i = 0; i < run->n_slos; i++) {
            const struct bt_slo *slo = &run->slos[i];
            if (slo->metric != (enum bt_slo_metric)m) {
                continue;
            }
            if (open) {
                fprintf(f, ", ");
            } else {
                fprintf(f, " %s_s = { ", bt_slo_metric_name(slo->metric));
            }
            fprintf(f, "%s = %.15g", bt_stat_name(slo->stat), (double)slo->limit_ns / 1e9);
            open = true;
        }
        fprintf(f, "%s", open ? " }," : "");
    }
    fprintf(f, " },\n");
}

static void print_trace(FILE *f, const struct bt_cli *cli)
{
    static const struct {
        const char *option, *key;
        bool number;
    } keys[] = {{"format", "format", false},
                {"columns", "columns", false},
                {"rate-scale", "rate_scale", true},
                {"from", "from_s", true},
                {"to", "to_s", true},
                {"limit", "limit", true}};
    fprintf(f, "  workload = w.trace {\n    file = ");
    print_quoted(f, cli->args.positional[0]);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!bt_args_given(&cli->args, keys[i].option)) {
            continue;
        }
        fprintf(f, ",\n    %s = ", keys[i].key);
        const char *text = bt_args_text(&cli->args, keys[i].option);
        if (keys[i].number) {
            fprintf(f, "%s", text);
        } else {
            print_quoted(f, text);
        }
    }
    if (strcmp(bt_args_text(&cli->args, "spread-ticks"), "off") == 0) {
        fprintf(f, ",\n    spread_ticks = false");
    }
    fprintf(f, ",\n  },\n");
}

enum bt_code bt_plan_question(const struct bt_cli *cli, const struct bt_catalog *catalog,
                              const struct bt_run_opts *run, char **out, struct bt_error *err)
{
    *out = NULL;
    if (run->n_slos == 0) {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--slo is missing: the limits to hold, such as --slo e2e.p95=1.5");
    }
    struct bt_config c;
    bt_config_init(&c);
    BT_TRY(bt_config_apply(&cli->args, &c, err));
    if (c.model[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--model is missing: a catalog name, a config.json or a folder");
    }
    if (!bt_args_given(&cli->args, "replicas")) {
        c.replicas = BT_AUTO;
    }
    size_t n = 0;
    FILE *f = open_memstream(out, &n);
    if (f == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for the question");
    }
    fprintf(f, "local w = require \"berth.workload\"\nreturn {\n  name = ");
    print_quoted(f, cli->args.positional[0]);
    fprintf(f, ",\n  seed = %llu,\n", (unsigned long long)run->seed);
    bt_config_print_lua(f, &c);
    if (!bt_args_given(&cli->args, "gpu")) {
        print_gpus(f, catalog);
    }
    if (!bt_args_given(&cli->args, "tp")) {
        fprintf(f, "  tp = { 1, 2, 4, 8 },\n");
    }
    if (!bt_args_given(&cli->args, "weights") && !bt_args_given(&cli->args, "activations")) {
        fprintf(f, "  weights = { \"bf16\", \"int8\", \"int4-g128\" },\n"
                   "  activations = { \"bf16\", \"int8-dynamic\" },\n");
    }
    if (!bt_args_given(&cli->args, "kv") && !bt_args_given(&cli->args, "block")) {
        fprintf(f, "  kv = { dtype = { \"bf16\", \"int8\" } },\n");
    }
    print_trace(f, cli);
    print_slo(f, run);
    double usd = bt_args_real(&cli->args, "budget", NAN);
    int64_t cards = bt_args_int(&cli->args, "budget-cards", 0);
    if (!isnan(usd) || cards > 0) {
        fprintf(f, "  budget = {");
        if (!isnan(usd)) {
            fprintf(f, " usd_per_h = %.15g,", usd);
        }
        if (cards > 0) {
            fprintf(f, " cards = %lld,", (long long)cards);
        }
        fprintf(f, " },\n");
    }
    fprintf(f, "}\n");
    if (fclose(f) != 0) {
        free(*out);
        *out = NULL;
        BT_FAIL(err, BT_ERR_NOMEM, 0, "plan: no memory for the question");
    }
    return BT_OK;
}
