/**
 * compare-templates FILE: renders the lines of a file as fixtures/make-templates.py makes them.
 * Prints the differences, and how many lines there were.
 */
#include "core/base/file.h"
#include "tests/text-template/template-case.h"

#include <stdio.h>
#include <string.h>

int
main(int argc, char **argv)
{
    gsize length = 0;
    guint n = 0, n_wrong = 0;
    g_autofree char *text = argc == 2 ? rp_file_read(argv[1], (gsize)1 << 30, &length, NULL) : NULL;

    if (text == NULL) {
        fprintf(stderr, "compare-templates: expected a file to read\n");
        return 2;
    }
    for (char *line = text; *line != '\0'; n++) {
        char *end = strchr(line, '\n');
        g_autofree char *difference = rp_template_case_check(line, (gsize)(end - line));
        if (difference != NULL)
            printf("%s\n\n", difference);
        n_wrong += difference != NULL;
        line = end + 1;
    }
    printf("%u templates rendered, %u differ\n", n, n_wrong);
    return n_wrong > 0;
}
