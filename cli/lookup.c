#include "cli/lookup.h"

#include "cli/files.h"
#include "engine/model/config.h"

static bool is_file_name(const char *name)
{
    return bt_ends_with(name, ".json") || bt_is_folder(name);
}

enum bt_code bt_lookup_model(const struct bt_catalog *c, const char *name, const char *what,
                             struct bt_arch *out, struct bt_error *err)
{
    if (is_file_name(name)) {
        struct bt_model_config config;
        BT_TRY(bt_model_config_read(name, &config, err));
        *out = config.arch;
        return BT_OK;
    }
    if (name[0] == '/' || name[0] == '.') { /* no name of the catalog, and no Hugging Face id */
        BT_FAIL(err, BT_ERR_NOTFOUND, 0, "%s: \"%s\": no such folder or config.json", what, name);
    }
    const struct bt_catalog_model *model = NULL;
    BT_TRY(bt_catalog_find_model(c, name, what, &model, err));
    *out = model->arch;
    return BT_OK;
}

enum bt_code bt_lookup_config(const struct bt_catalog *c, const struct bt_config *config,
                              struct bt_lookup *out, struct bt_error *err)
{
    *out = (struct bt_lookup){.has_draft = config->spec.kind == BT_SPEC_DRAFT};
    if (config->model[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0,
                "--model is missing: a catalog name, a config.json or a folder");
    }
    if (config->gpu[0] == '\0') {
        BT_FAIL(err, BT_ERR_ARG, 0, "--gpu is missing: a GPU of the catalog");
    }
    BT_TRY(bt_lookup_model(c, config->model, "model", &out->arch, err));
    if (out->has_draft) {
        BT_TRY(bt_lookup_model(c, config->spec.draft, "spec.draft", &out->draft, err));
    }
    const struct bt_catalog_gpu *gpu = NULL;
    BT_TRY(bt_catalog_find_gpu(c, config->gpu, "gpu", &gpu, err));
    out->gpu = gpu->gpu;
    return BT_OK;
}
