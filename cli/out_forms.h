/* The three forms of a result document (cli/out.h), for cli/out.c alone. Stream errors are left to
 * the caller's flush. Threading: no state. */
#ifndef BT_CLI_OUT_FORMS_H
#define BT_CLI_OUT_FORMS_H

#include "cli/out.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the document as JSON with a closing line end. */
void bt_out_json(FILE *f, const json_t *doc);

/* Writes one value as JSON on one line, without a line end: a CSV cell of a list of objects. */
void bt_out_json_compact(FILE *f, const json_t *value);

/* Writes a header line and rows; rows_path NULL: see struct bt_out_view. BT_ERR_NOMEM. */
BT_NODISCARD enum bt_code bt_out_csv(FILE *f, const json_t *doc, const char *rows_path,
                                     struct bt_error *err);

/* Writes aligned tables; view NULL: every member. */
void bt_out_table(FILE *f, const json_t *doc, const struct bt_out_view *view);

#ifdef __cplusplus
}
#endif

#endif
