/* Ids, places and text of every form of tokenizer, against Hugging Face's. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>

#include "tests/json-tree.h"
#include "tests/text/expected.h"
#include "text/tokenizer/private.h"

#define FIXTURES "tests/text/fixtures/"

static const char *const forms[] = {"deepseek",  "digits", "gpt-oss", "gpt2", "llama2",  "llama3",
                                    "metaspace", "nfd",    "odd",     "qwen", "qwen3-5", "tekken"};

typedef struct {
    RpTokenizer *tokenizer;
    GArray *all; /* RpExpected */
    GArray *ids;
    GArray *spans;
    GString *text;
    GError *error;
    char *fault;
} Fixture;

static void
set_up(Fixture *f)
{
    f->ids = g_array_new(FALSE, FALSE, sizeof(guint32));
    f->spans = g_array_new(FALSE, FALSE, sizeof(RpTokenSpan));
    f->text = g_string_new(NULL);
}

static void
close_form(Fixture *f)
{
    g_clear_pointer(&f->tokenizer, rp_tokenizer_free);
    g_clear_pointer(&f->all, g_array_unref);
    g_clear_pointer(&f->fault, g_free);
    g_clear_error(&f->error);
    g_array_set_size(f->ids, 0);
    g_array_set_size(f->spans, 0);
    g_string_truncate(f->text, 0);
}

static void
tear_down(Fixture *f)
{
    close_form(f);
    g_array_unref(f->ids);
    g_array_unref(f->spans);
    g_string_free(f->text, TRUE);
}

static void
open_form(Fixture *f, const char *name)
{
    g_autofree char *file = g_strdup_printf(RP_SOURCE_ROOT "/" FIXTURES "%s.json", name);

    close_form(f);
    f->tokenizer = rp_tokenizer_open(file, &f->error);
}

static void
encode(Fixture *f, const char *text, gsize length)
{
    g_array_set_size(f->ids, 0);
    g_array_set_size(f->spans, 0);
    f->fault =
        rp_tokenizer_encode(f->tokenizer, text, length, RP_ENCODE_TEXT, f->ids, f->spans, &f->error)
            ? NULL
            : g_strdup(f->error->message);
}

RP_TEST_OF(gives_the_ids_and_texts_of_hugging_face, Fixture *f)
{
    for (gsize i = 0; i < G_N_ELEMENTS(forms); i++) {
        g_autofree char *ids = g_strdup_printf(RP_SOURCE_ROOT "/" FIXTURES "%s.ids", forms[i]);

        open_form(f, forms[i]);
        rp_assert_no_error(f->error);
        f->all = rp_expected_load(RP_SOURCE_ROOT "/" FIXTURES "texts.jsonl", ids);
        assert_true(f->all->len > 80);
        for (guint round = 0; round < 2; round++) /* the second finds pieces in the cache */
            for (guint t = 0; t < f->all->len; t++) {
                f->fault = rp_expected_compare(f->tokenizer, &g_array_index(f->all, RpExpected, t));
                if (f->fault != NULL)
                    fail_msg("%s, text %u: %s", forms[i], t + 1, f->fault);
            }
    }
}

RP_TEST_OF(takes_control_characters_and_nul, Fixture *f)
{
    const char text[] = "a\0b\0\0<|end|>\0";
    const gsize length = sizeof text - 1;

    open_form(f, "qwen");
    encode(f, text, length);
    rp_assert_no_error(f->error);
    assert_true(rp_tokenizer_decode(f->tokenizer, (const guint32 *)(const void *)f->ids->data,
                                    f->ids->len, RP_DECODE_ALL, f->text, NULL));
    assert_int_equal(f->text->len, length);
    assert_memory_equal(f->text->str, text, length);
    /* a NUL is written as U+0100, and is one token */
    assert_int_equal(g_array_index(f->ids, guint32, 1), rp_tokenizer_id(f->tokenizer, "Ā"));
    assert_int_equal(g_array_index(f->spans, RpTokenSpan, 1).start, 1);
}

RP_TEST_OF(refuses_what_is_not_utf8_with_its_offset, Fixture *f)
{
    static const struct {
        const char *text;
        const char *offset;
    } rows[] = {
        {"abc\xff", "offset 3: expected UTF-8, found byte 0xff"},
        {"\xc3", "offset 0"},           /* cut short */
        {"é\xc0\x80", "offset 2"},      /* overlong */
        {"ab\xed\xa0\x80", "offset 2"}, /* a surrogate */
        {"\xf4\x90\x80\x80", "offset 0"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        open_form(f, "llama3");
        encode(f, rows[i].text, strlen(rows[i].text));
        rp_assert_error_message_contains(f->error, rows[i].offset);
        assert_true(f->error->domain == RP_TOKENIZER_ERROR);
        assert_int_equal(f->ids->len, 0);
    }
}

/* Any tokens may follow each other; bytes that are no text then show as U+FFFD, as Rust does it. */
RP_TEST_OF(decodes_what_is_not_utf8, Fixture *f)
{
    static const struct {
        const char *bytes;
        const char *text;
    } rows[] = {
        {"\xc3", "\ufffd"},
        {"\xe2\x82", "\ufffd"},
        {"\xe2\x82\xe2\x82\xac", "\ufffd€"},
        {"\xf0\x9f\x98"
         "a",
         "\ufffd"
         "a"},
        {"\xc0\x80", "\ufffd\ufffd"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xf5\x80", "\ufffd\ufffd"},
        {"\x80", "\ufffd"},
    };

    open_form(f, "qwen");
    for (gsize i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_array_set_size(f->ids, 0);
        g_string_truncate(f->text, 0);
        for (const char *p = rows[i].bytes; *p != '\0'; p++) {
            const guint8 byte = (guint8)*p;
            char character[8] = "";

            if ((byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad))
                character[g_unichar_to_utf8(byte, character)] = '\0';
            else /* bytes that Latin-1 does not print, from U+0100 on */
                character[g_unichar_to_utf8(byte <= 0x20 ? 0x100u + byte : 0x121u + byte - 0x7fu,
                                            character)] = '\0';
            const guint32 id = (guint32)rp_tokenizer_id(f->tokenizer, character);

            g_array_append_val(f->ids, id);
        }
        assert_true(rp_tokenizer_decode(f->tokenizer, (const guint32 *)(const void *)f->ids->data,
                                        f->ids->len, RP_DECODE_ALL, f->text, NULL));
        assert_string_equal(f->text->str, rows[i].text);
    }
}

RP_TEST_OF(refuses_ids_that_no_token_has, Fixture *f)
{
    const guint32 ids[] = {1, 2, 100000};

    open_form(f, "qwen");
    rp_refuses("id 3: expected that of a token, at most 425", rp_tokenizer_decode, f->tokenizer,
               ids, 3, RP_DECODE_ALL, f->text);
    assert_int_equal(f->text->len, 0);
}

RP_TEST_OF(tells_tokens_by_their_text, Fixture *f)
{
    open_form(f, "qwen");
    assert_int_equal(rp_tokenizer_id(f->tokenizer, "<|im_start|>"), 422);
    assert_int_equal(rp_tokenizer_id(f->tokenizer, "<|nobody|>"), -1);
    assert_string_equal(rp_tokenizer_token(f->tokenizer, 422), "<|im_start|>");
    assert_null(rp_tokenizer_token(f->tokenizer, 4711));
    assert_true(rp_tokenizer_is_special(f->tokenizer, 422));
    assert_false(rp_tokenizer_is_special(f->tokenizer, 423)); /* <think> is added, not special */
    assert_int_equal(rp_tokenizer_size(f->tokenizer), 426);
    assert_int_equal(rp_tokenizer_role(f->tokenizer, RP_TOKEN_EOS), -1);
}

/* Opens a form's file with a tokenizer_config.json beside it. */
static void
open_beside(Fixture *f, const char *form, const char *config_text)
{
    g_autofree char *source = g_strconcat(RP_SOURCE_ROOT "/" FIXTURES, form, ".json", NULL);
    g_autofree char *directory = g_dir_make_tmp("test-tokenizer-XXXXXX", NULL);
    g_autofree char *file = g_build_filename(directory, "tokenizer.json", NULL);
    g_autofree char *config = g_build_filename(directory, "tokenizer_config.json", NULL);
    g_autofree char *content = NULL;

    assert_true(g_file_get_contents(source, &content, NULL, NULL));
    assert_true(g_file_set_contents(file, content, -1, NULL));
    assert_true(g_file_set_contents(config, config_text, -1, NULL));
    f->tokenizer = rp_tokenizer_open(directory, &f->error);
    (void)g_remove(file);
    (void)g_remove(config);
    (void)g_rmdir(directory);
}

RP_TEST_OF(reads_roles_beside_the_file, Fixture *f)
{
    open_beside(f, "qwen",
                "{\"add_bos_token\": false, \"bos_token\": null, \"eos_token\": \"<|end|>\",\n"
                " \"pad_token\": {\"__type\": \"AddedToken\", \"content\": \"<|begin|>\"}}");
    rp_assert_no_error(f->error);
    assert_int_equal(rp_tokenizer_role(f->tokenizer, RP_TOKEN_BOS), -1);
    assert_int_equal(rp_tokenizer_role(f->tokenizer, RP_TOKEN_EOS), 421);
    assert_int_equal(rp_tokenizer_role(f->tokenizer, RP_TOKEN_PAD), 420);
}

/* add_bos_token and add_eos_token decide, where one is there: as transformers 5 has it. */
RP_TEST_OF(puts_tokens_around_as_the_config_says, Fixture *f)
{
    static const struct {
        const char *form, *config;
        gint64 first, last; /* -1: the text's */
    } cases[] = {
        {"qwen", "{\"bos_token\": \"<|begin|>\", \"eos_token\": \"<|end|>\"}", -1, -1},
        {"qwen", "{\"add_bos_token\": true, \"bos_token\": \"<|begin|>\"}", 420, -1},
        {"qwen", "{\"add_bos_token\": true, \"bos_token\": null}", -1, -1},
        {"qwen",
         "{\"add_bos_token\": true, \"add_eos_token\": true, \"bos_token\": \"<|begin|>\", "
         "\"eos_token\": \"<|end|>\"}",
         420, 421},
        {"llama3", "{}", 423, -1},
        {"llama3", "{\"add_bos_token\": false, \"bos_token\": \"<|begin|>\"}", -1, -1},
        {"llama3", "{\"add_eos_token\": null, \"bos_token\": \"<|begin|>\"}", -1, -1},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_clear_pointer(&f->tokenizer, rp_tokenizer_free);
        g_array_set_size(f->ids, 0);
        open_beside(f, cases[i].form, cases[i].config);
        rp_assert_no_error(f->error);
        assert_true(rp_tokenizer_encode(f->tokenizer, "ab", 2, RP_ENCODE_TEMPLATE, f->ids, NULL,
                                        &f->error));
        const gint64 first = g_array_index(f->ids, guint32, 0);
        const gint64 last = g_array_index(f->ids, guint32, f->ids->len - 1);

        assert_int_equal(first >= 420 ? first : -1, cases[i].first);
        assert_int_equal(last >= 420 ? last : -1, cases[i].last);
    }
}

/* A string of 1 MB without a space is one piece; were its merges quadratic, this would take hours. */
RP_TEST_OF(takes_long_strings_in_time, Fixture *f)
{
    const gsize length = RP_TEST_FEW ? 1 << 17 : 1 << 20;
    g_autofree char *text = g_malloc(length);
    guint32 random = 1;

    for (gsize i = 0; i < length; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = (char)('a' + (random >> 16) % 26);
    }
    for (guint form = 0; form < 3; form++) {
        open_form(f, (const char *[]){"qwen", "llama2", "gpt-oss"}[form]);
        const gint64 begin_us = g_get_monotonic_time();

        encode(f, text, length);
        assert_true(g_get_monotonic_time() - begin_us < 60 * G_USEC_PER_SEC);
        assert_true(rp_tokenizer_decode(f->tokenizer, (const guint32 *)(const void *)f->ids->data,
                                        f->ids->len, RP_DECODE_ALL, f->text, NULL));
        assert_int_equal(f->text->len, length);
        assert_memory_equal(f->text->str, text, length);
    }
}

/* Ranks of a file's merges, plus 1, by "left right". */
static GHashTable *
read_ranks(const char *form)
{
    g_autofree char *file = g_strdup_printf(RP_SOURCE_ROOT "/" FIXTURES "%s.json", form);
    g_autofree char *content = NULL;
    GHashTable *ranks = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    assert_true(g_file_get_contents(file, &content, NULL, NULL));
    g_autoptr(RpTree) tree = rp_tree_parse(content);
    const RpTree *merges = rp_tree_find(tree, "model.merges");

    for (guint i = 0; i < merges->items->len; i++) {
        const RpTree *pair = rp_tree_nth(merges, i);

        g_hash_table_insert(
            ranks,
            pair->items->len == 2
                ? g_strdup_printf("%s %s", rp_tree_nth(pair, 0)->text, rp_tree_nth(pair, 1)->text)
                : g_strdup(pair->text),
            GUINT_TO_POINTER(i + 1));
    }
    return ranks;
}

/* The symbols of @text before anything merges, as the file writes them. */
static GPtrArray *
first_symbols(const RpTokenizer *tokenizer, const char *text)
{
    GPtrArray *symbols = g_ptr_array_new_with_free_func(g_free);

    for (const char *p = text, *next; *p != '\0'; p = next) {
        g_autofree char *one = g_strndup(p, (gsize)(g_utf8_next_char(p) - p));
        char byte[8];

        next = g_utf8_next_char(p);
        if (!tokenizer->byte_level && rp_tokenizer_id(tokenizer, one) >= 0)
            g_ptr_array_add(symbols, g_steal_pointer(&one));
        else if (!tokenizer->byte_level && !tokenizer->byte_fallback)
            g_ptr_array_add(symbols, g_strdup("<unk>"));
        for (; one != NULL && (tokenizer->byte_level || tokenizer->byte_fallback) && p < next; p++)
            if (tokenizer->byte_level)
                g_ptr_array_add(symbols,
                                g_strndup(byte, rp_byte_level_character((guint8)*p, byte)));
            else
                g_ptr_array_add(symbols, g_strdup_printf("<0x%02X>", (guint8)*p));
    }
    return symbols;
}

/* Merges the leftmost pair of lowest rank. FALSE: no pair merges. */
static gboolean
merge_one(GHashTable *ranks, GPtrArray *symbols)
{
    guint lowest = G_MAXUINT, at = 0;

    for (guint i = 0; i + 1 < symbols->len; i++) {
        g_autofree char *pair =
            g_strdup_printf("%s %s", (char *)symbols->pdata[i], (char *)symbols->pdata[i + 1]);
        const guint rank = GPOINTER_TO_UINT(g_hash_table_lookup(ranks, pair));

        if (rank > 0 && rank < lowest) {
            lowest = rank;
            at = i;
        }
    }
    if (lowest == G_MAXUINT)
        return FALSE;
    char *merged = g_strconcat(symbols->pdata[at], symbols->pdata[at + 1], NULL);

    g_ptr_array_remove_index(symbols, at + 1);
    g_free(symbols->pdata[at]);
    symbols->pdata[at] = merged;
    return TRUE;
}

/* The heap gives the tokens that a look at all pairs for each merge gives. */
RP_TEST_OF(merges_the_lowest_rank_first, Fixture *f)
{
    static const char *const letters[] = {"a",         "the ", "ab",
                                          "hello wrd", "an",   "a\xcc\x81éлис你好"};
    const guint n_bytes = RP_TEST_FEW ? 100 : 400;
    guint32 random = 7;
    RpMergeWork work;

    rp_merge_work_init(&work);
    for (gsize i = 0; i < G_N_ELEMENTS(forms); i++) {
        g_autoptr(GHashTable) ranks = read_ranks(forms[i]);

        open_form(f, forms[i]);
        for (gsize l = 0; l < G_N_ELEMENTS(letters); l++) {
            const glong n_letters = g_utf8_strlen(letters[l], -1);

            g_string_truncate(f->text, 0);
            while (f->text->len < n_bytes) {
                random = random * 1664525 + 1013904223;
                const glong n = (glong)(random >> 16) % n_letters;

                g_string_append_unichar(f->text,
                                        g_utf8_get_char(g_utf8_offset_to_pointer(letters[l], n)));
            }
            rp_bpe_merge(f->tokenizer, f->text->str, f->text->len, &work);
            g_autoptr(GPtrArray) expected = first_symbols(f->tokenizer, f->text->str);

            while (merge_one(ranks, expected))
                ;
            assert_int_equal(work.symbols->len, expected->len);
            for (guint k = 0; k < expected->len; k++)
                assert_string_equal(
                    rp_tokenizer_token(f->tokenizer, g_array_index(work.symbols, RpSymbol, k).id),
                    expected->pdata[k]);
        }
    }
    rp_merge_work_clear(&work);
}

/* A merge may come before those of its parts: `t he` before `h e`. */
RP_TEST_OF(takes_merges_in_any_order, Fixture *f)
{
    static const struct {
        const char *vocabulary, *merges, *text;
        guint n_ids;
    } cases[] = {
        {"\"th\": 5, \"he\": 6, \"the\": 7", "\"t h\", \"th e\", \"t he\", \"h e\"", "thehethhe",
         4},
        {"\"th\": 5, \"he\": 6, \"the\": 7", "\"t he\", \"h e\"", "thehethhe", 5},
        {"\"he\": 5, \"ee\": 6", "\"h e\", \"e ee\", \"e e\"", "heee", 2},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *json = g_strdup_printf(
            "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"t\": 1, "
            "\"h\": 2, \"e\": 3, \"eee\": 4, %s}, \"merges\": [%s]}}",
            cases[i].vocabulary, cases[i].merges);

        g_clear_pointer(&f->tokenizer, rp_tokenizer_free);
        f->tokenizer = rp_must(rp_tokenizer_parse, "case", json, strlen(json));
        encode(f, cases[i].text, strlen(cases[i].text));
        assert_int_equal(f->ids->len, cases[i].n_ids);
    }
}

#define THREADS 4

static gpointer
encode_all(gpointer data)
{
    const Fixture *f = data;
    guint n_wrong = 0;

    for (guint t = 0; t < f->all->len; t++) {
        g_autofree char *fault =
            rp_expected_compare(f->tokenizer, &g_array_index(f->all, RpExpected, t));

        n_wrong += fault != NULL;
    }
    return GUINT_TO_POINTER(n_wrong);
}

RP_TEST_OF(serves_several_threads, Fixture *f)
{
    GThread *threads[THREADS];

    open_form(f, "qwen");
    f->all = rp_expected_load(RP_SOURCE_ROOT "/" FIXTURES "texts.jsonl",
                              RP_SOURCE_ROOT "/" FIXTURES "qwen.ids");
    for (guint i = 0; i < THREADS; i++)
        threads[i] = g_thread_new("encode", encode_all, f);
    for (guint i = 0; i < THREADS; i++)
        assert_int_equal(GPOINTER_TO_UINT(g_thread_join(threads[i])), 0);
}

RP_TEST_STATE(Fixture, set_up, tear_down)
