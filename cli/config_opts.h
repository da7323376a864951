/* The configuration's options on the command line: made from the table of sim/config.h, so that a
 * knob is declared once. Threading: the main thread.
 */
#ifndef BT_CLI_CONFIG_OPTS_H
#define BT_CLI_CONFIG_OPTS_H

#include "cli/args.h"
#include "sim/config.h"

#include <jansson.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The options of every field that has one; made on first use, static storage. */
struct bt_opt_table bt_config_opt_table(void);

/* Sets the fields whose options were given, in the order given. BT_ERR_ARG names the option. */
BT_NODISCARD enum bt_code bt_config_apply(const struct bt_args *args, struct bt_config *c,
                                          struct bt_error *err);

/* Sets a field from "KEY=VALUE", where KEY is a key path or an option's name. BT_ERR_ARG names the
 * key, with "did you mean". */
BT_NODISCARD enum bt_code bt_config_apply_set(const char *text, struct bt_config *c,
                                              struct bt_error *err);

/* The field that "KEY" names, by key path or option; NULL with the error set, "did you mean"
 * included. `where` starts the message ("--set"). */
const struct bt_config_field *bt_config_field_named(const char *key, const char *where,
                                                    struct bt_error *err);

/* The whole configuration as a document: nested by key path, numbers as numbers. */
json_t *bt_config_json(const struct bt_config *c);

#ifdef __cplusplus
}
#endif

#endif
