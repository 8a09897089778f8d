/* Compares a tokenizer with the expectations of make-tokenizers.py: TOKENIZER.json TEXTS
 * EXPECTED. */
#include <stdio.h>

#include "tests/text/expected.h"

int
main(int argc, char **argv)
{
    guint n_wrong = 0;

    if (argc != 4) {
        fprintf(stderr, "Usage: compare-tokenizer TOKENIZER.json TEXTS.jsonl EXPECTED\n");
        return 2;
    }
    g_autoptr(GError) error = NULL;
    const gint64 begin_us = g_get_monotonic_time();
    g_autoptr(RpTokenizer) tokenizer = rp_tokenizer_open(argv[1], &error);
    const gint64 end_us = g_get_monotonic_time();

    if (tokenizer == NULL) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    g_autoptr(GArray) all = rp_expected_load(argv[2], argv[3]);

    for (guint i = 0; i < all->len; i++) {
        g_autofree char *fault = rp_expected_compare(tokenizer, &g_array_index(all, RpExpected, i));

        if (fault != NULL && n_wrong++ < 20)
            printf("text %u: %s\n", i + 1, fault);
    }
    printf("%s: opened in %.3f s; %u texts, %u differ\n", argv[1],
           (double)(end_us - begin_us) / G_USEC_PER_SEC, all->len, n_wrong);
    return n_wrong > 0;
}
