/* Habits that a compiler does not check, found by reading the tree: who may include whom, calls
 * that are banned, line lengths, marks of unfinished work. Each rule carries an example that it
 * must catch and one that it must let pass.
 *
 * Patterns are split ("FIX" "ME") where this file would otherwise break its own rules. */
#include <criterion/criterion.h>

#include <ctype.h>
#include <regex.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 100, MAX_LINES = 900, MAX_BODY = 70, PATH_BYTES = 512, WORD_BYTES = 256 };

/* ---- rules as data ---- */

enum view {
    RAW,  /* the text as it is */
    CODE, /* without comments and the contents of strings */
};

struct rule {
    const char *name;
    const char *in;     /* folders or files that it covers, separated by spaces; "" is all */
    const char *except; /* of those, not these */
    const char *types;  /* ends of file names, separated by spaces; "" is all */
    enum view view;
    const char *pattern; /* POSIX extended */
    const char *message;
    const char *bad_path, *bad; /* caught */
    const char *good;           /* lets pass, at bad_path */
};

#define SOURCES ".c .h .cu .cuh"
#define WRITTEN ".c .h .cu .cuh .lua .gp .sh .cmake .txt .sql .md"
#define CALL(f) "(^|[^A-Za-z0-9_.>])(" f ") *\\("

static const struct rule rules[] = {
    {"unbounded-string", "", "", SOURCES, CODE, CALL("strcpy|strcat|sprintf|vsprintf|gets|stpcpy"),
     "writes without a bound: use snprintf or memcpy", "sim/a.c", "  strcpy(a, b);\n",
     "  my_strcpy(a, b); snprintf(a, 3, \"strcpy(\"); /* strcpy(a, b) */\n"},
    {"unchecked-number", "", "", SOURCES, CODE, CALL("atoi|atol|atoll|atof"),
     "hides errors: use strtol or strtod and check the end", "cli/a.c", "x = atoi(s);\n",
     "x = atoi_checked(s);\n"},
    {"global-random", "", "", SOURCES, CODE, CALL("rand|srand|random|srandom|drand48|rand_r"),
     "use a named stream of engine/core/rng.h", "sim/a.c", "x = rand() % 6;\n",
     "x = bt_rand(r) + s->rand(r);\n"},
    {"clock", "", "", SOURCES, CODE, CALL("time|clock|gettimeofday|localtime|gmtime"),
     "time is an argument; programs read CLOCK_MONOTONIC", "db/a.c", "t = time(NULL);\n",
     "t = step_time(b) + clock_gettime(CLOCK_MONOTONIC, &ts);\n"},
    {"clock-in-simulation", "engine/core/ sim/", "", SOURCES, CODE,
     CALL("clock_gettime|timespec_get|nanosleep|usleep|sleep"), "time is an argument here",
     "sim/a.c", "clock_gettime(CLOCK_MONOTONIC, &t);\n", "sim_sleep(t);\n"},
    {"exit", "engine/ sim/ db/ scripts/", "", SOURCES, CODE, CALL("exit|_exit|quick_exit"),
     "libraries return errors", "db/a.c", "exit(1);\n", "on_exit_hook(1);\n"},
    {"abort", "engine/ sim/ db/ scripts/ cli/", "engine/core/error.c", SOURCES, CODE, CALL("abort"),
     "use BT_ASSERT", "db/a.c", "abort();\n", "db_abort(tx);\n"},
    {"print", "engine/ sim/ db/ scripts/", "", SOURCES, CODE, CALL("printf|puts|putchar"),
     "libraries print nothing", "sim/a.c", "printf(\"x\");\n", "snprintf(b, 9, \"x\");\n"},
    {"allocation", "engine/core/", "engine/core/arena.c", SOURCES, CODE,
     CALL("malloc|calloc|realloc|free|strdup|aligned_alloc|posix_memalign"),
     "engine/core allocates from arenas only", "engine/core/a.c", "p = malloc(8);\n",
     "block_free(p); p->free(p);\n"},
    {"sql", "engine/ sim/ scripts/ cli/", "", SOURCES, RAW,
     "\"(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|PRAGMA|BEGIN IMMEDIATE) ",
     "only db/ holds SQL", "cli/a.c", "q = \"SELECT a FROM b\";\n", "q = \"selected \";\n"},
    {"sqlite", "engine/ sim/ scripts/ cli/", "", SOURCES, CODE, "(^|[^A-Za-z0-9_])sqlite3_",
     "only db/ calls SQLite", "cli/a.c", "sqlite3_open(p, &db);\n", "bt_sqlite3_x();\n"},
    {"lua", "engine/ sim/ db/ cli/", "", SOURCES, CODE, "(^|[^A-Za-z0-9_])(lua_|luaL_)",
     "only scripts/host calls Lua", "cli/a.c", "lua_State *L;\n", "bt_lua_x();\n"},
    {"cuda", "engine/core/ engine/cpu/ engine/model/ sim/ db/ scripts/ cli/", "", SOURCES, CODE,
     "(^|[^A-Za-z0-9_])(cuda[A-Z]|cublas[A-Z]|__global__|__device__)", "only engine/cuda sees CUDA",
     "cli/a.c", "cudaMalloc(&p, 8);\n", "bt_cudaX();\n"},
    {"unfinished", "", "", WRITTEN, RAW,
     "(^|[^A-Za-z])(FIX"
     "ME|TO"
     "DO|X"
     "XX)([^A-Za-z]|$)",
     "finish it, or say what holds", "sim/a.c",
     "/* TO"
     "DO: later */\n",
     "mkstemp(\"aXXXXXX\");\n"},
    {"machine-path", "", "", WRITTEN " .json .csv .run", RAW,
     "(^|[^A-Za-z0-9_.~-])/(wo"
     "rk|ro"
     "ot|ho"
     "me)/",
     "names a path of one machine", "docs/a.md",
     "see /wo"
     "rk/x\n",
     "host/wo"
     "rk/x and ~/ro"
     "ot/\n"},
    {"tab", "", "", ".c .h .cu .cuh .lua .gp .sh .cmake .txt .sql .md", RAW, "\t", "use spaces",
     "sim/a.c", "\tint x;\n", "    int x;\n"},
    {"trailing-space", "", "", WRITTEN, RAW, "[ \t\r]$", "ends in white space", "sim/a.c",
     "int x; \n", "int x;\n"},
    {"glob", "", "cmake/EngineHash.cmake", ".cmake .txt", RAW, "file\\( *GLOB",
     "sources are listed", "sim/CMakeLists.txt", "file(GLOB X *.c)\n", "# globs are not used\n"},
    {"lua-quotes", "", "", ".lua", CODE, "'", "Lua strings have double quotes", "scripts/lua/a.lua",
     "local a = 'b'\n", "local a = \"it's\" -- it's\n"},
    {"lua-semicolon", "", "", ".lua", CODE, "; *$", "Lua lines need no semicolon",
     "scripts/lua/a.lua", "local a = 1;\n", "local a = \"x;\"\n"},
};

enum { N_RULES = sizeof rules / sizeof rules[0] };

/* Which project headers a folder may include: dependencies point one way. The first row that
 * covers a file decides. */
static const struct {
    const char *folder, *allowed;
} layers[] = {
    {"engine/core/", "engine/core/"},
    {"engine/", "engine/ cmake/"},
    {"sim/", "sim/ engine/core/ cmake/"},
    {"db/", "db/ engine/core/ cmake/"},
    {"scripts/", "scripts/ sim/ engine/ db/ cmake/"},
    {"cli/", "cli/ scripts/ sim/ engine/ db/ cmake/"},
    {"cmake/", ""},
};

/* Which folders may include a library's headers. */
static const struct {
    const char *header, *folders;
} libraries[] = {
    {"lua", "scripts/host/ tests/"},     {"lualib", "scripts/host/ tests/"},
    {"lauxlib", "scripts/host/ tests/"}, {"sqlite3", "db/ tests/"},
    {"cuda", "engine/cuda/ tests/"},     {"cublas", "engine/cuda/ tests/"},
    {"nccl", "engine/cuda/ tests/"},     {"criterion/", "tests/"},
};

/* All that engine/core may take from outside: C17 without clocks, threads, signals and locales. */
static const char CORE_HEADERS[] = " assert.h ctype.h errno.h float.h inttypes.h limits.h math.h "
                                   "stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h "
                                   "stdio.h stdlib.h stdnoreturn.h string.h ";

/* ---- small text helpers ---- */

static bool starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* Whether any word of the list is a prefix (or a suffix) of the path. */
static bool any_word(const char *list, const char *path,
                     bool (*matches)(const char *path, const char *word))
{
    for (const char *at = list; *at != '\0';) {
        char word[WORD_BYTES];
        size_t n = strcspn(at, " ");
        cr_assert_lt(n, sizeof word);
        memcpy(word, at, n);
        word[n] = '\0';
        if (n > 0 && matches(path, word)) {
            return true;
        }
        at += n;
        at += *at == ' ';
    }
    return false;
}

static bool covers(const struct rule *rule, const char *path)
{
    bool in = rule->in[0] == '\0' || any_word(rule->in, path, starts_with);
    bool type = rule->types[0] == '\0' || any_word(rule->types, path, ends_with);
    return in && type && !any_word(rule->except, path, starts_with);
}

static bool is_source(const char *path)
{
    return any_word(SOURCES, path, ends_with);
}

/* ---- the code without comments and strings ---- */

/* Overwrites [from, to) with spaces, keeping line ends. */
static void blank(char *text, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (text[i] != '\n') {
            text[i] = ' ';
        }
    }
}

/* End of a quoted text that starts at i (at the quote): index of the closing quote or line end. */
static size_t quote_end(const char *text, size_t i)
{
    char quote = text[i];
    for (i++; text[i] != '\0' && text[i] != quote && text[i] != '\n'; i++) {
        i += text[i] == '\\' && text[i + 1] != '\0';
    }
    return i;
}

static size_t find_end(const char *text, size_t i, const char *mark)
{
    const char *at = strstr(text + i, mark);
    return at == NULL ? strlen(text) : (size_t)(at - text) + strlen(mark);
}

static bool on_include_line(const char *text, size_t i)
{
    while (i > 0 && text[i - 1] != '\n') {
        i--;
    }
    return starts_with(text + i, "#include");
}

static void strip_c(char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++) {
        size_t end = i;
        if (starts_with(text + i, "/*")) {
            end = find_end(text, i + 2, "*/");
            blank(text, i, end);
        } else if (starts_with(text + i, "//")) {
            end = i + strcspn(text + i, "\n");
            blank(text, i, end);
        } else if ((text[i] == '"' || text[i] == '\'') && !on_include_line(text, i)) {
            end = quote_end(text, i);
            blank(text, i + 1, end);
            end += text[end] != '\0';
        }
        i = end > i ? end - 1 : i;
    }
}

/* Single quotes are kept, since a rule looks for them. */
static void strip_lua(char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++) {
        size_t end = i;
        if (starts_with(text + i, "--[[")) {
            end = find_end(text, i + 4, "]]");
            blank(text, i, end);
        } else if (starts_with(text + i, "--")) {
            end = i + strcspn(text + i, "\n");
            blank(text, i, end);
        } else if (starts_with(text + i, "[[")) {
            end = find_end(text, i + 2, "]]");
            blank(text, i, end);
        } else if (text[i] == '"') {
            end = quote_end(text, i);
            blank(text, i + 1, end);
            end += text[end] != '\0';
        }
        i = end > i ? end - 1 : i;
    }
}

/* ---- checks; each reports through `found` and returns how many ---- */

struct report {
    const char *only; /* count findings of this rule alone; NULL: all, and print them */
    int n;
};

static void found(struct report *r, const char *path, int line, const char *rule,
                  const char *message)
{
    if (r->only == NULL) {
        fprintf(stderr, "%s:%d: %s: %s\n", path, line, rule, message);
    }
    r->n += r->only == NULL || strcmp(r->only, rule) == 0;
}

static regex_t compiled[N_RULES];

static void compile_rules(void)
{
    for (size_t i = 0; i < N_RULES; i++) {
        cr_assert_eq(regcomp(&compiled[i], rules[i].pattern, REG_EXTENDED | REG_NEWLINE), 0, "%s",
                     rules[i].name);
    }
}

static void free_rules(void)
{
    for (size_t i = 0; i < N_RULES; i++) {
        regfree(&compiled[i]);
    }
}

static int line_of(const char *text, size_t at)
{
    int line = 1;
    for (size_t i = 0; i < at; i++) {
        line += text[i] == '\n';
    }
    return line;
}

static void check_rule(struct report *r, size_t rule_i, const char *path, const char *text)
{
    const struct rule *rule = &rules[rule_i];
    regmatch_t match;
    size_t at = 0;
    while (text[at] != '\0' &&
           regexec(&compiled[rule_i], text + at, 1, &match, at == 0 ? 0 : REG_NOTBOL) == 0) {
        size_t end = at + (size_t)match.rm_eo;
        found(r, path, line_of(text, end > 0 ? end - 1 : 0), rule->name, rule->message);
        at = end + (match.rm_eo == match.rm_so);
        at += strcspn(text + at, "\n");
    }
}

/* Columns of a line: code points of UTF-8. */
static int columns_of(const char *line, size_t n)
{
    int columns = 0;
    for (size_t i = 0; i < n; i++) {
        columns += ((unsigned char)line[i] & 0xc0) != 0x80;
    }
    return columns;
}

static void check_lines(struct report *r, const char *path, const char *text)
{
    bool has_limit = is_source(path) || ends_with(path, ".lua") || ends_with(path, ".gp");
    int line = 1;
    const char *at = text;
    for (; *at != '\0'; line++) {
        size_t n = strcspn(at, "\n");
        if (has_limit && columns_of(at, n) > MAX_COLUMNS) {
            found(r, path, line, "columns", "longer than 100 columns");
        }
        at += n;
        if (*at == '\0') {
            found(r, path, line, "line-end", "the last line has no end");
            break;
        }
        at++;
    }
    if (is_source(path) && !starts_with(path, "tests/") && line > MAX_LINES) {
        found(r, path, line, "lines", "longer than 900 lines: one idea a file");
    }
}

/* Bodies stand between a brace at the start of a line and its closing twin. A longer one needs a
 * comment above its function that says "Long because". */
static void check_functions(struct report *r, const char *path, const char *text)
{
    int line = 1, open_line = 0;
    const char *open = NULL, *last_close = text;
    for (const char *at = text; *at != '\0'; line++) {
        if (*at == '{') {
            open = at;
            open_line = line;
        } else if (*at == '}') {
            const char *reason = strstr(last_close, "Long because");
            bool excused = open != NULL && reason != NULL && reason < open;
            if (open != NULL && line - open_line - 1 > MAX_BODY && !excused) {
                found(r, path, open_line, "function-lines", "a body of more than 70 lines");
            }
            open = NULL;
            last_close = at;
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
}

static const char *layer_of(const char *path)
{
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        if (starts_with(path, layers[i].folder)) {
            return layers[i].allowed;
        }
    }
    return NULL;
}

static void check_project_include(struct report *r, const char *path, int line, const char *name)
{
    const char *allowed = layer_of(path);
    if (strchr(name, '/') == NULL) {
        found(r, path, line, "include-root", "includes start at the repository's root");
    } else if (allowed != NULL && !any_word(allowed, name, starts_with)) {
        found(r, path, line, "layer", "this folder may not include that one");
    }
}

static void check_system_include(struct report *r, const char *path, int line, const char *name)
{
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++) {
        const char *header = libraries[i].header;
        size_t n = strlen(header);
        bool same = strncmp(name, header, n) == 0 &&
                    (header[n - 1] == '/' || !islower((unsigned char)name[n]));
        if (same && !any_word(libraries[i].folders, path, starts_with)) {
            found(r, path, line, "library", "this folder may not use that library");
        }
    }
    if (starts_with(path, "engine/core/")) {
        char word[WORD_BYTES + 3];
        (void)snprintf(word, sizeof word, " %s ", name);
        if (strstr(CORE_HEADERS, word) == NULL) {
            found(r, path, line, "core-header", "engine/core takes C17 headers only");
        }
    }
}

static void check_includes(struct report *r, const char *path, const char *code)
{
    int line = 1;
    for (const char *at = code; *at != '\0'; line++) {
        char open = 0, name[WORD_BYTES] = "";
        if (sscanf(at, "#include %c%255[^\">\n]", &open, name) == 2) {
            if (open == '"') {
                check_project_include(r, path, line, name);
            } else {
                check_system_include(r, path, line, name);
            }
        }
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
}

/* BT_<PATH>_H, as in BT_ENGINE_CORE_ERROR_H. */
static void check_guard(struct report *r, const char *path, const char *text)
{
    char want[PATH_BYTES] = "#ifndef BT_";
    size_t n = strlen(want);
    for (const char *at = path; *at != '\0' && n + 1 < sizeof want; at++) {
        want[n++] = isalnum((unsigned char)*at) ? (char)toupper((unsigned char)*at) : '_';
    }
    want[n] = '\0';
    if (strstr(text, want) == NULL) {
        found(r, path, 1, "guard", "the include guard is not BT_<PATH>_H");
    }
    if (!starts_with(text, "/*")) {
        found(r, path, 1, "purpose", "a header starts with a comment that says what it is for");
    }
}

static void check_file(struct report *r, const char *path, const char *text)
{
    size_t n_bytes = strlen(text) + 1;
    char *code = malloc(n_bytes);
    cr_assert_not_null(code);
    memcpy(code, text, n_bytes);
    if (is_source(path)) {
        strip_c(code);
        check_includes(r, path, code);
        if (!starts_with(path, "tests/")) {
            check_functions(r, path, text);
        }
    } else if (ends_with(path, ".lua")) {
        strip_lua(code);
    }
    for (size_t i = 0; i < N_RULES; i++) {
        if (covers(&rules[i], path)) {
            check_rule(r, i, path, rules[i].view == RAW ? text : code);
        }
    }
    if (any_word(WRITTEN, path, ends_with)) {
        check_lines(r, path, text);
    }
    if (ends_with(path, ".h")) {
        check_guard(r, path, text);
    }
    if (ends_with(path, ".gp") && (strstr(text, "ARG1") == NULL || strstr(text, "ARG2") == NULL)) {
        found(r, path, 1, "figure", "a figure takes its data as ARG1 and its output as ARG2");
    }
    free(code);
}

/* ---- the tree ---- */

/* Text of a file; NULL when it is absent or holds a zero byte (not a text). */
static char *read_text(const char *path)
{
    char full[2 * PATH_BYTES];
    (void)snprintf(full, sizeof full, "%s/%s", BT_TEST_SOURCE_DIR, path);
    FILE *f = fopen(full, "r");
    char *text = NULL;
    size_t cap = 0;
    if (f == NULL) {
        return NULL;
    }
    ssize_t n = getdelim(&text, &cap, '\0', f);
    bool whole = n >= 0 && feof(f);
    fclose(f);
    if (!whole) {
        free(text);
        return NULL;
    }
    return text;
}

/* Tracked and new files where there is a repository, else every file outside build/. */
static FILE *list_files(void)
{
    return popen("cd '" BT_TEST_SOURCE_DIR "' && { git ls-files -z --cached --others "
                 "--exclude-standard 2>/dev/null || find . -path ./build -prune -o -type f "
                 "-printf '%P\\0'; }",
                 "r");
}

Test(tidy, tree)
{
    compile_rules();
    struct report report = {0};
    FILE *list = list_files();
    cr_assert_not_null(list);
    char *path = NULL;
    size_t cap = 0;
    int n_files = 0;
    while (getdelim(&path, &cap, '\0', list) > 0) {
        if (!any_word(WRITTEN " .json .run", path, ends_with)) {
            continue;
        }
        char *text = read_text(path);
        if (text != NULL) {
            check_file(&report, path, text);
            n_files++;
        }
        free(text);
    }
    free(path);
    cr_expect_eq(pclose(list), 0);
    cr_expect_gt(n_files, 20, "only %d files were found", n_files);
    cr_expect_eq(report.n, 0, "%d findings, listed above", report.n);
    free_rules();
}

static int count(const char *rule, const char *path, const char *text)
{
    struct report report = {.only = rule};
    check_file(&report, path, text);
    return report.n;
}

Test(tidy, each_rule_catches_its_example)
{
    compile_rules();
    for (size_t i = 0; i < N_RULES; i++) {
        const struct rule *rule = &rules[i];
        cr_expect_eq(count(rule->name, rule->bad_path, rule->bad), 1, "%s misses its example",
                     rule->name);
        cr_expect_eq(count(rule->name, rule->bad_path, rule->good), 0, "%s catches: %s", rule->name,
                     rule->good);
    }
    free_rules();
}

Test(tidy, structure_is_checked)
{
    static const struct {
        const char *rule, *path, *text;
        int n;
    } cases[] = {
        {"layer", "engine/core/a.c", "#include \"sim/des.h\"\n", 1},
        {"layer", "engine/core/a.c", "#include \"engine/core/error.h\"\n", 0},
        {"layer", "engine/core/a.c", "#include \"engine/model/config.h\"\n", 1},
        {"layer", "engine/cpu/a.c", "#include \"engine/core/error.h\"\n", 0},
        {"layer", "engine/cpu/a.c", "#include \"sim/run.h\"\n", 1},
        {"layer", "sim/a.c", "#include \"engine/model/config.h\"\n", 1},
        {"layer", "sim/a.c", "#include \"db/store.h\"\n", 1},
        {"layer", "db/a.c", "#include \"sim/run.h\"\n", 1},
        {"layer", "scripts/host/a.c", "#include \"cli/args.h\"\n", 1},
        {"layer", "scripts/host/a.c", "#include \"db/store.h\"\n", 0},
        {"layer", "cli/a.c", "#include \"db/store.h\"\n#include \"tests/x.h\"\n", 1},
        {"include-root", "sim/a.c", "#include \"des.h\"\n", 1},
        {"library", "cli/a.c", "#include <sqlite3.h>\n", 1},
        {"library", "db/a.c", "#include <sqlite3.h>\n", 0},
        {"library", "sim/a.c", "#include <lua.h>\n#include <lauxlib.h>\n", 2},
        {"library", "cli/a.c", "#include <cuda_runtime_api.h>\n", 1},
        {"library", "cli/a.c", "#include <criterion/criterion.h>\n", 1},
        {"core-header", "engine/core/a.c", "#include <unistd.h>\n#include <string.h>\n", 1},
        {"core-header", "engine/core/a.c", "#include <time.h>\n#include <jansson.h>\n", 2},
        {"core-header", "sim/a.c", "#include <time.h>\n", 0},
        {"guard", "sim/a/b.h", "/* x */\n#ifndef BT_SIM_A_B_H\n", 0},
        {"guard", "sim/a/b.h", "/* x */\n#ifndef SIM_B_H\n", 1},
        {"purpose", "sim/a.h", "#ifndef BT_SIM_A_H\n", 1},
        {"line-end", "sim/a.c", "int x;", 1},
        {"figure", "scripts/plot/a.gp", "plot ARG1\n", 1},
        {"figure", "scripts/plot/a.gp", "set output ARG2\nplot ARG1\n", 0},
        {"columns", "sim/a.c",
         "/* 45678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "012345678 */\n",
         1},
        {"columns", "docs/a.md",
         "   45678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "012345678901\n",
         0},
    };
    compile_rules();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = count(cases[i].rule, cases[i].path, cases[i].text);
        cr_expect_eq(n, cases[i].n, "%s in %s: %d findings for %s", cases[i].rule, cases[i].path, n,
                     cases[i].text);
    }
    free_rules();
}

Test(tidy, long_files_are_found)
{
    static char text[2 * MAX_LINES + 3];
    for (int i = 0; i < MAX_LINES + 1; i++) {
        memcpy(text + 2 * i, ";\n", 2);
    }
    compile_rules();
    cr_expect_eq(count("lines", "sim/a.c", text), 1);
    cr_expect_eq(count("lines", "tests/sim/a.c", text), 0);
    free_rules();
}

Test(tidy, long_functions_are_found)
{
    static char text[1024];
    char *body = text + snprintf(text, sizeof text, "int f(void)\n{\n");
    for (int i = 0; i < MAX_BODY; i++) {
        memcpy(body + 2 * i, ";\n", 2);
    }
    char *end = body + 2 * MAX_BODY;
    compile_rules();
    memcpy(end, "}\n", 3);
    cr_expect_eq(count("function-lines", "sim/a.c", text), 0);
    memcpy(end, ";\n}\n", 5);
    cr_expect_eq(count("function-lines", "sim/a.c", text), 1);
    cr_expect_eq(count("function-lines", "tests/sim/a.c", text), 0);
    char excused[sizeof text + 64];
    (void)snprintf(excused, sizeof excused, "/* Long because it parses. */\n%s", text);
    cr_expect_eq(count("function-lines", "sim/a.c", excused), 0);
    free_rules();
}
