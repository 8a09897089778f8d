/**
 * Runs a harness without libFuzzer: over its corpus, then over inputs made of it. The random seed
 * is fixed: the same inputs each time, with any compiler and sanitizer.
 *
 *   fuzz-profile fuzz/corpus/profile 20000     files as they are, then 20000 changed ones
 */
#include "fuzz/harness.h"

#include <stdio.h>

#include "core/base/file.h"

#define SEED 20240607
#define MOST_CHANGES 4
#define MOST_BYTES 8192 /* a changed input is no longer */

/* (element-type GBytes): the files of @folder, by name. */
static GPtrArray *
read_corpus(const char *folder)
{
    GPtrArray *corpus = g_ptr_array_new_with_free_func((GDestroyNotify)g_bytes_unref);
    g_autoptr(GError) error = NULL;
    g_autoptr(GPtrArray) names = rp_file_list(folder, &error);

    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *path = g_build_filename(folder, g_ptr_array_index(names, i), NULL);
        char *text;
        gsize length;

        if (!g_file_get_contents(path, &text, &length, &error))
            break;
        g_ptr_array_add(corpus, g_bytes_new_take(text, length));
    }
    if (error != NULL || corpus->len == 0)
        g_error("%s", error != NULL ? error->message : "no files in the corpus");
    return corpus;
}

static gsize
pick(GRand *random, gsize n)
{
    return n == 0 ? 0 : g_rand_int(random) % n;
}

/* 1 to 64 bytes, shorter ones more often; no more than @most. */
static gsize
pick_length(GRand *random, gsize most)
{
    const gsize length = 1 + pick(random, (gsize)1 << pick(random, 7));

    return MIN(length, most);
}

/* One change: a part goes, or some of @other comes, in its place or before it; or bytes become
 * others. */
static void
change(GByteArray *input, GBytes *other, GRand *random)
{
    static const char marks[] = "\0\n\"'{}[]:,-+.0123456789eE\\#&* \x7f\x80\xff";
    const gsize at = pick(random, input->len), from = pick(random, g_bytes_get_size(other));
    const gsize length = pick_length(random, input->len - at);
    const gsize n = pick_length(random, g_bytes_get_size(other) - from);
    const guint kind = g_rand_int(random) % 5;

    if (kind < 3) {
        const gsize end = at + (kind < 2 ? length : 0);
        g_autofree guint8 *tail = g_memdup2(input->data + end, input->len - end);
        const gsize n_tail = input->len - end;

        g_byte_array_set_size(input, (guint)at);
        if (kind > 0)
            g_byte_array_append(input, (const guint8 *)g_bytes_get_data(other, NULL) + from,
                                (guint)n);
        g_byte_array_append(input, tail, (guint)n_tail);
    } else if (kind == 3) {
        for (gsize i = 0; i < MIN(length, 4); i++)
            input->data[at + i] = (guint8)marks[pick(random, sizeof marks - 1)];
    } else if (length > 0) {
        input->data[at] ^= (guint8)(1u << pick(random, 8));
    }
    if (input->len > MOST_BYTES)
        g_byte_array_set_size(input, MOST_BYTES);
}

/* A copy of its own size, so that a sanitizer sees a read behind it. */
static void
run(const guint8 *data, gsize size)
{
    g_autofree guint8 *copy = g_memdup2(data, size);

    (void)LLVMFuzzerTestOneInput(copy != NULL ? copy : (const guint8 *)"", size);
}

int
main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s CORPUS INPUTS\n", argv[0]);
        return 2;
    }
    g_log_set_always_fatal(G_LOG_FATAL_MASK | G_LOG_LEVEL_CRITICAL);
    g_autoptr(GPtrArray) corpus = read_corpus(argv[1]);
    g_autoptr(GRand) random = g_rand_new_with_seed(SEED);
    const guint64 n = g_ascii_strtoull(argv[2], NULL, 10);

    for (guint i = 0; i < corpus->len; i++)
        run(g_bytes_get_data(corpus->pdata[i], NULL), g_bytes_get_size(corpus->pdata[i]));
    for (guint64 i = 0; i < n; i++) {
        GBytes *base = corpus->pdata[pick(random, corpus->len)];
        g_autoptr(GByteArray) input = g_byte_array_new();

        g_byte_array_append(input, g_bytes_get_data(base, NULL), (guint)g_bytes_get_size(base));
        for (gsize c = 1 + pick(random, MOST_CHANGES); c > 0; c--)
            change(input, corpus->pdata[pick(random, corpus->len)], random);
        run(input->data, input->len);
    }
    printf("%u files, %" G_GUINT64_FORMAT " inputs made of them, no crash\n", corpus->len, n);
    return 0;
}
