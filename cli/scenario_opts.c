#include "cli/scenario_opts.h"

#include "cli/config_opts.h"
#include "cli/files.h"

#include <math.h>
#include <string.h>

/* Options of the configuration, where the command takes them, say the same as --set. */
static enum bt_code fix_options(const struct bt_cli *cli, struct bt_scenario *s,
                                struct bt_error *err)
{
    for (const struct bt_config_field *f = bt_config_fields; f->path != NULL; f++) {
        if (f->option == NULL || !bt_args_given(&cli->args, f->option)) {
            continue;
        }
        char where[BT_NAME_BYTES];
        (void)snprintf(where, sizeof where, "--%s", f->option);
        const char *text = bt_args_text(&cli->args, f->option);
        struct bt_config scratch = s->base;
        BT_TRY(bt_config_set(&scratch, f, text, where, err));
        bt_scenario_fix(s, f, text);
    }
    return BT_OK;
}

bool bt_scenario_path(const char *path)
{
    return bt_ends_with(path, ".lua");
}

enum bt_code bt_scenario_open(const struct bt_cli *cli, const char *path, struct bt_scenario *out,
                              struct bt_error *err)
{
    enum bt_code loaded = bt_scenario_load(path, out, err);
    if (loaded == BT_ERR_SCRIPT && !bt_scenario_path(path)) {
        *err = (struct bt_error){0};
        BT_FAIL(err, BT_ERR_INPUT, 0,
                "%s: not a scenario, which is a Lua file; `berth replay` serves a trace", path);
    }
    BT_TRY(loaded);
    enum bt_code code = cli->command->takes_config ? fix_options(cli, out, err) : BT_OK;
    int32_t at = 0;
    for (const char *text;
         code == BT_OK && (text = bt_args_next(&cli->args, "set", &at)) != NULL;) {
        char key[BT_NAME_BYTES];
        struct bt_config scratch = out->base;
        code = bt_config_apply_set(text, &scratch, err);
        if (code == BT_OK) {
            (void)snprintf(key, sizeof key, "%.*s", (int)strcspn(text, "="), text);
            const struct bt_config_field *f = bt_config_field_named(key, "--set", err);
            bt_scenario_fix(out, f, strchr(text, '=') + 1);
        }
    }
    if (code != BT_OK) {
        bt_scenario_fini(out);
    }
    return code;
}

void bt_scenario_run_opts(const struct bt_cli *cli, const struct bt_scenario *s,
                          struct bt_run_opts *run, double *warmup)
{
    if (!bt_args_given(&cli->args, "seed")) {
        run->seed = s->seed;
    }
    if (run->n_slos == 0) {
        memcpy(run->slos, s->slos, sizeof run->slos);
        run->n_slos = s->n_slos;
    }
    *warmup = isnan(run->warmup) ? s->warmup_fraction : run->warmup;
}

enum bt_code bt_scenario_error(enum bt_code code, struct bt_error *err)
{
    if (code == BT_ERR_ARG || code == BT_ERR_NOTFOUND) {
        err->code = BT_ERR_INPUT;
        return BT_ERR_INPUT;
    }
    return code;
}
