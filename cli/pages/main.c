/* Writes a page or a script to standard output, for the build:
 *   roundpipe-pages manual | manual-run | manual-COMMAND | bash | zsh | fish */
#include "cli/pages/pages.h"

#include <stdio.h>
#include <string.h>

#include "cli/config.h"

#define DECLARE(name) extern const RpCommand rp_command_##name;
#define ROW(name) &rp_command_##name,
RP_COMMANDS(DECLARE)
static const RpCommand *const commands[] = {RP_COMMANDS(ROW) NULL};

static const struct {
    const char *name;
    void (*make)(GString *text, const RpCommand *const *commands);
} pages[] = {
    {"manual", rp_manual_overview},
    {"bash", rp_completion_bash},
    {"zsh", rp_completion_zsh},
    {"fish", rp_completion_fish},
};

int
main(int argc, char **argv)
{
    g_autoptr(GString) text = g_string_new(NULL);
    const char *name = argc == 2 ? argv[1] : "";

    for (gsize i = 0; i < G_N_ELEMENTS(pages); i++)
        if (strcmp(name, pages[i].name) == 0)
            pages[i].make(text, commands);
    if (strcmp(name, "manual-run") == 0)
        rp_manual_run_file(text);
    for (gsize i = 0; commands[i] != NULL; i++)
        if (g_str_has_prefix(name, "manual-") && strcmp(name + 7, commands[i]->name) == 0)
            rp_manual_command(text, commands[i]);
    if (text->len == 0) {
        fprintf(stderr, "roundpipe-pages: expected the name of a page, found \"%s\"\n", name);
        return RP_EXIT_USAGE;
    }
    return fputs(text->str, stdout) < 0 || fflush(stdout) != 0 ? RP_EXIT_FAILED : RP_EXIT_OK;
}
