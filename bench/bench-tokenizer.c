/**
 * Measures encoding and decoding on one core, with files and with words of megabytes.
 *
 *   bench-tokenizer [TOKENIZER.json [TEXT...]]
 *
 * Each is encoded three times; the first meets an empty cache of pieces. Without texts it takes this
 * project's own documents.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/tokenizer/tokenizer.h"

#define ROUNDS 3

/* Counts this thread's processor time alone, as others may use the machine. */
static gint64
now_us(void)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * G_USEC_PER_SEC + time.tv_nsec / 1000;
}

static double
seconds_since(gint64 begin_us)
{
    return (double)(now_us() - begin_us) / G_USEC_PER_SEC;
}

static gboolean
time_text(const RpTokenizer *tokenizer, const char *name, const char *text, gsize length)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));
    g_autoptr(GString) back = g_string_new(NULL);
    g_autoptr(GError) error = NULL;
    double first = 0, best = G_MAXDOUBLE;

    for (guint round = 0; round < ROUNDS; round++) {
        const gint64 begin_us = now_us();

        g_array_set_size(ids, 0);
        if (!rp_tokenizer_encode(tokenizer, text, length, RP_ENCODE_TEXT, ids, NULL, &error)) {
            fprintf(stderr, "%s: %s\n", name, error->message);
            return FALSE;
        }
        first = round == 0 ? seconds_since(begin_us) : first;
        best = MIN(best, seconds_since(begin_us));
    }
    const gint64 spans_us = now_us();

    g_array_set_size(ids, 0);
    if (!rp_tokenizer_encode(tokenizer, text, length, RP_ENCODE_TEXT, ids, spans, NULL))
        return FALSE;
    const double with_spans = seconds_since(spans_us);
    const gint64 back_us = now_us();

    if (!rp_tokenizer_decode(tokenizer, (const guint32 *)(const void *)ids->data, ids->len,
                             RP_DECODE_ALL, back, NULL))
        return FALSE;
    const double megabytes = (double)length / 1e6;

    printf("%-28s %6.1f MB  %8u tokens  first %6.1f MB/s  best %6.1f MB/s  with spans %6.1f MB/s  "
           "back %6.1f MB/s%s\n",
           name, megabytes, ids->len, megabytes / first, megabytes / best, megabytes / with_spans,
           megabytes / seconds_since(back_us),
           back->len == length && memcmp(back->str, text, length) == 0 ? "" : "  (other text)");
    return TRUE;
}

/* Random letters of an alphabet without a space: one piece. */
static gboolean
time_word(const RpTokenizer *tokenizer, const char *kind, gunichar first, guint n_letters,
          gsize length)
{
    g_autoptr(GString) text = g_string_sized_new(length);
    g_autofree char *name = g_strdup_printf("%s, %.1f MB", kind, (double)length / 1e6);
    guint32 random = 1;

    while (text->len < length) {
        random = random * 1664525 + 1013904223;
        g_string_append_unichar(text, first + (random >> 8) % n_letters);
    }
    return time_text(tokenizer, name, text->str, text->len);
}

static gboolean
time_file(const RpTokenizer *tokenizer, const char *path)
{
    g_autofree char *base = g_path_get_basename(path);
    g_autofree char *once = NULL;
    gsize length = 0;

    if (!g_file_get_contents(path, &once, &length, NULL) || length == 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return FALSE;
    }
    g_autoptr(GString) text = g_string_new(NULL);

    while (text->len < 10000000)
        g_string_append_len(text, once, (gssize)length);
    return time_text(tokenizer, base, text->str, text->len);
}

int
main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : RP_BENCH_TOKENIZER;
    g_autoptr(GError) error = NULL;
    const gint64 begin_us = now_us();
    g_autoptr(RpTokenizer) tokenizer = rp_tokenizer_open(path, &error);

    if (tokenizer == NULL) {
        fprintf(stderr, "%s\n", error->message);
        return 1;
    }
    printf("opened in %.3f s: %u ids\n", seconds_since(begin_us), rp_tokenizer_size(tokenizer));
    for (int i = 2; i < argc; i++)
        if (!time_file(tokenizer, argv[i]))
            return 1;
    if (argc <= 2 && !time_file(tokenizer, RP_BENCH_TEXT))
        return 1;
    for (gsize length = 1000000; length <= 16000000; length *= 4)
        if (!time_word(tokenizer, "one word", 'a', 26, length) ||
            !time_word(tokenizer, "one letter", 'a', 1, length) ||
            !time_word(tokenizer, "random Chinese", 0x4e00, 20992, length))
            return 1;
    return 0;
}
