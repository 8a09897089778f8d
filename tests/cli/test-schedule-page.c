/* docs/your-schedule.md, followed word by word. */
#include "tests/cli/run-cli.h"

#include <string.h>

/* Each line that the page shows is in what was printed; times of proofs and replays are those of a
 * machine. */
static void
check_shown(const char *command, const RpCliRun *run, char **lines)
{
    if (run->code != 0)
        fail_msg("%s: %d, %s", command, run->code, run->err);
    for (; *lines != NULL; lines++) {
        if (strcmp(g_strchug(*lines), "…") == 0) /* any lines */
            continue;
        const char *more = strstr(*lines, " …");
        const char *proved = more != NULL ? more : strstr(*lines, " proved in ");
        g_autofree char *part = g_strndup(
            g_strchug(*lines), proved != NULL ? (gsize)(proved - *lines) : strlen(*lines));

        if (strstr(run->out, part) == NULL)
            fail_msg("%s: expected \"%s\", found %s", command, part, run->out);
    }
}

/* The commands of a block that begins with one, each with the lines under it. */
static guint
follow_block(const char *block)
{
    g_auto(GStrv) commands = g_strsplit(block, "$ roundpipe ", -1);
    guint n = 0;

    for (char **command = commands + 1; n + 1 < g_strv_length(commands); command++, n++) {
        g_auto(GStrv) lines = g_strsplit(g_strchomp(*command), "\n", -1);
        g_auto(RpCliRun) run = rp_cli_shell("cd @T && $ROUNDPIPE %s", lines[0]);

        check_shown(lines[0], &run, lines + 1);
    }
    return n;
}

RP_TEST(the_page_is_followed_word_by_word)
{
    g_autofree char *page = NULL;
    guint n = 0;

    assert_true(g_file_get_contents(RP_SOURCE_ROOT "/docs/your-schedule.md", &page, NULL, NULL));
    g_auto(GStrv) blocks = g_strsplit(page, "```", -1);

    for (guint i = 1; i < g_strv_length(blocks); i += 2) {
        if (g_str_has_prefix(blocks[i], "text\n")) {
            rp_cli_write("eager.txt", blocks[i] + strlen("text\n"));
        } else if (g_str_has_prefix(blocks[i], "c\n")) {
            g_auto(GStrv) lines = g_strsplit(blocks[i], "\n", -1);

            assert_int_equal(g_strv_length(lines) - 2, 21);
        } else {
            n += follow_block(blocks[i]);
        }
    }
    assert_int_equal(n, 5);
    g_autofree char *picture = rp_cli_temporary("eager.png");

    assert_true(g_file_test(picture, G_FILE_TEST_EXISTS));
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
