#include "cli/args.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static const struct bt_opt opts[] = {
    {.name = "tp",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "1",
     .min = 1,
     .max = 64,
     .help = "GPUs a replica"},
    {.name = "offset", .kind = BT_OPT_INT, .value = "N", .help = "any whole number"},
    {.name = "rate",
     .kind = BT_OPT_REAL,
     .value = "F",
     .default_text = "1",
     .min = 0.001,
     .max = INFINITY,
     .help = "time compression"},
    {.name = "window",
     .kind = BT_OPT_REAL,
     .value = "F",
     .min = 0,
     .max = 100,
     .unit = "ms",
     .help = "scheduling window"},
    {.name = "preempt",
     .kind = BT_OPT_ENUM,
     .value = "HOW",
     .default_text = "recompute",
     .allowed = "recompute|swap|auto",
     .help = "preemption"},
    {.name = "model", .kind = BT_OPT_TEXT, .value = "NAME", .help = "the model"},
    {.name = "set", .kind = BT_OPT_TEXT, .value = "KEY=VALUE", .help = "override", .repeats = true},
    {.name = "max-rate", .kind = BT_OPT_FLAG, .help = "find the highest rate"},
    {.name = "jobs",
     .kind = BT_OPT_INT,
     .value = "N",
     .default_text = "<cores>",
     .min = 1,
     .max = 1024,
     .help = "threads"},
};
static const struct bt_opt more[] = {
    {.name = "json", .kind = BT_OPT_FLAG, .help = "JSON"},
    {.name = "help", .kind = BT_OPT_FLAG, .help = "help"},
};
static const struct bt_opt_table tables[] = {
    {.title = "Options", .opts = opts, .n_opts = sizeof opts / sizeof opts[0]},
    {.title = "Common", .opts = more, .n_opts = sizeof more / sizeof more[0]},
};

enum { MAX_WORDS = 16 };

/* Splits at single spaces; "''" stands for an empty word. */
static enum bt_code parse(struct bt_args *args, const char *line, struct bt_error *err)
{
    static char buf[512];
    char *argv[MAX_WORDS];
    int argc = 0;
    (void)snprintf(buf, sizeof buf, "%s", line);
    for (char *word = strtok(buf, " "); word != NULL; word = strtok(NULL, " ")) {
        cr_assert_lt(argc, MAX_WORDS);
        argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
    }
    return bt_args_parse(args, tables, 2, argc, argv, err);
}

Test(args, defaults_hold_when_nothing_is_given)
{
    struct bt_args args;
    cr_assert_eq(parse(&args, "", NULL), BT_OK);
    cr_expect_eq(bt_args_int(&args, "tp", 7), 1);
    cr_expect_eq(bt_args_int(&args, "offset", 7), 7);
    cr_expect_eq(bt_args_int(&args, "jobs", 3), 3, "a described default is not a value");
    cr_expect_eq(bt_args_real(&args, "rate", 0), 1);
    cr_expect(isnan(bt_args_real(&args, "window", NAN)));
    cr_expect_str_eq(bt_args_text(&args, "preempt"), "recompute");
    cr_expect_null(bt_args_text(&args, "model"));
    cr_expect_not(bt_args_given(&args, "tp"));
    cr_expect_not(bt_args_given(&args, "json"));
    cr_expect_eq(args.n_positional, 0);
    bt_args_fini(&args);
}

Test(args, both_forms_positional_words_and_the_last_value_wins)
{
    struct bt_args args;
    cr_assert_eq(
        parse(&args, "t.csv --tp 2 --tp=4 --model=a=b - --max-rate --offset -5 -- --x", NULL),
        BT_OK);
    cr_expect_eq(bt_args_int(&args, "tp", 0), 4);
    cr_expect_eq(bt_args_int(&args, "offset", 0), -5);
    cr_expect_str_eq(bt_args_text(&args, "model"), "a=b");
    cr_expect(bt_args_given(&args, "max-rate"));
    cr_assert_eq(args.n_positional, 3);
    cr_expect_str_eq(args.positional[0], "t.csv");
    cr_expect_str_eq(args.positional[1], "-");
    cr_expect_str_eq(args.positional[2], "--x");
    bt_args_fini(&args);
    cr_expect_null(args.given);
}

Test(args, repeated_options_keep_their_order)
{
    struct bt_args args;
    cr_assert_eq(parse(&args, "--set a=1 --tp 2 --set b=2 -h", NULL), BT_OK);
    int32_t at = 0;
    cr_expect_str_eq(bt_args_next(&args, "set", &at), "a=1");
    cr_expect_str_eq(bt_args_next(&args, "set", &at), "b=2");
    cr_expect_null(bt_args_next(&args, "set", &at));
    cr_expect(bt_args_given(&args, "help"));
    bt_args_fini(&args);
}

Test(args, every_mistake_names_option_value_and_what_is_allowed)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--gpuu x", "unknown option --gpuu"},
        {"--modle x", "unknown option --modle; did you mean --model?"},
        {"--modle=x", "unknown option --modle; did you mean --model?"},
        {"--jso", "unknown option --jso; did you mean --json?"},
        {"--max", "unknown option --max; did you mean --max-rate?"},
        {"-m x", "unknown option -m; options have two dashes, and `--` comes before arguments that "
                 "start with one"},
        {"--json=1", "--json takes no value ('1' given)"},
        {"--tp", "--tp needs a value: --tp N"},
        {"--tp --json", "--tp needs a value: --tp N"},
        {"--tp 0", "--tp: '0' is not a whole number from 1 to 64"},
        {"--tp 65", "--tp: '65' is not a whole number from 1 to 64"},
        {"--tp 2.5", "--tp: '2.5' is not a whole number from 1 to 64"},
        {"--tp 2x", "--tp: '2x' is not a whole number from 1 to 64"},
        {"--tp=", "--tp: '' is not a whole number from 1 to 64"},
        {"--tp 99999999999999999999",
         "--tp: '99999999999999999999' is not a whole number from 1 to "
         "64"},
        {"--offset -", "--offset: '-' is not a whole number"},
        {"--rate 0", "--rate: '0' is not a number of at least 0.001"},
        {"--rate nan", "--rate: 'nan' is not a number of at least 0.001"},
        {"--rate inf", "--rate: 'inf' is not a number of at least 0.001"},
        {"--rate 1e999", "--rate: '1e999' is not a number of at least 0.001"},
        {"--rate 0x10", "--rate: '0x10' is not a number of at least 0.001"},
        {"--rate 1.2.3", "--rate: '1.2.3' is not a number of at least 0.001"},
        {"--window 101", "--window: '101' is not a number from 0 to 100 ms"},
        {"--preempt swp", "--preempt: 'swp' is not one of recompute|swap|auto; did you mean swap?"},
        {"--preempt never", "--preempt: 'never' is not one of recompute|swap|auto"},
        {"--preempt swap|auto", "--preempt: 'swap|auto' is not one of recompute|swap|auto"},
        {"--model ''", "--model: the value is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bt_args args;
        struct bt_error err = {0};
        cr_expect_eq(parse(&args, cases[i].line, &err), BT_ERR_ARG, "%s", cases[i].line);
        cr_expect_str_eq(err.msg, cases[i].message, "%s:\n got %s\nwant %s", cases[i].line, err.msg,
                         cases[i].message);
        cr_expect_null(args.given, "%s", cases[i].line);
    }
}

Test(args, help_wraps_and_shows_range_unit_and_default)
{
    static const struct bt_opt shown[] = {
        {.name = "a-very-long-option-name",
         .kind = BT_OPT_TEXT,
         .value = "FILE",
         .help = "words that go on for long enough to be wrapped at the eightieth column of the "
                 "terminal"},
        {.name = "window",
         .kind = BT_OPT_REAL,
         .value = "F",
         .default_text = "0",
         .min = 0,
         .max = 100,
         .unit = "ms",
         .help = "scheduling window"},
        {.name = "on",
         .kind = BT_OPT_ENUM,
         .value = "X",
         .allowed = "on|off",
         .default_text = "on",
         .help = "switch"},
        {.name = "flag", .kind = BT_OPT_FLAG, .help = "a flag"},
        {.name = "text", .kind = BT_OPT_TEXT, .unit = "ms", .help = "a text"},
        {.name = "same",
         .kind = BT_OPT_ENUM,
         .value = "on|off",
         .allowed = "on|off",
         .help = "said once"},
        {.name = "long",
         .kind = BT_OPT_ENUM,
         .value = "WORD",
         .allowed = "alphabetical|biographical|cartographical|demographical|ethnographical",
         .help = "list"},
        {.name = "rate", .kind = BT_OPT_REAL, .min = 0.5, .max = INFINITY, .help = "rate"},
    };
    struct bt_opt_table table = {.opts = shown, .n_opts = sizeof shown / sizeof shown[0]};
    char buf[2048] = "";
    FILE *f = fmemopen(buf, sizeof buf, "w");
    cr_assert_not_null(f);
    bt_opt_print(f, &table);
    fclose(f);
    cr_expect_str_eq(buf,
                     "  --a-very-long-option-name FILE\n"
                     "                          words that go on for long enough to be wrapped "
                     "at the\n"
                     "                          eightieth column of the terminal\n"
                     "  --window F              scheduling window, 0 to 100 ms [0]\n"
                     "  --on X                  switch (on|off) [on]\n"
                     "  --flag                  a flag\n"
                     "  --text VALUE            a text (ms)\n"
                     "  --same on|off           said once\n"
                     "  --long WORD             list (alphabetical|biographical|cartographical|\n"
                     "                          demographical|ethnographical)\n"
                     "  --rate VALUE            rate, at least 0.5\n",
                     "%s", buf);
}
