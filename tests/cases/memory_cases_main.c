/* usage: memory_cases FILE.csv: prints the page docs/MEMORY_CASES.md for a file of memory cases. */
#include "tests/cases/memory_cases.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct bt_error err = {0};
    struct bt_catalog *catalog = NULL;
    struct memory_cases cases = {0};
    if (argc != 2) {
        (void)fprintf(stderr, "usage: memory_cases FILE.csv\n");
        return 2;
    }
    enum bt_code code = bt_catalog_open(NULL, 0, &catalog, &err);
    if (code == BT_OK) {
        code = memory_cases_read(argv[1], catalog, &cases, &err);
    }
    if (code == BT_OK) {
        memory_cases_print(&cases, stdout);
    } else {
        (void)fprintf(stderr, "memory_cases: %s\n", err.msg);
    }
    memory_cases_free(&cases);
    bt_catalog_close(catalog);
    return code == BT_OK ? 0 : 3;
}
