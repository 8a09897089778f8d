#include "tests/exec-model/tensor-fixture.h"

#include <glib/gstdio.h>

int
tensor_setup(void **state)
{
    TensorFixture *f = g_new0(TensorFixture, 1);

    f->directory = g_dir_make_tmp("rp-tensors-XXXXXX", NULL);
    *state = f;
    return f->directory != NULL ? 0 : -1;
}

int
tensor_teardown(void **state)
{
    TensorFixture *f = *state;
    const char *name;

    rp_safetensors_writer_free(f->writer);
    rp_safetensors_free(f->tensors);
    g_autoptr(GDir) dir = g_dir_open(f->directory, 0, NULL);
    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = tensor_path(f, name);
        g_remove(path);
    }
    g_rmdir(f->directory);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    g_clear_error(&f->error);
    g_free(f->text);
    g_free(f->directory);
    g_free(f);
    return 0;
}

char *
tensor_path(const TensorFixture *f, const char *name)
{
    return g_build_filename(f->directory, name, NULL);
}

void
tensor_make(TensorFixture *f, const char *header, gsize data_bytes)
{
    GByteArray *file = g_byte_array_new();
    guint64 length = GUINT64_TO_LE(strlen(header));

    g_byte_array_append(file, (const guint8 *)&length, sizeof length);
    g_byte_array_append(file, (const guint8 *)header, (guint)strlen(header));
    for (gsize i = 0; i < data_bytes; i++) {
        guint8 byte = (guint8)i;
        g_byte_array_append(file, &byte, 1);
    }
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    f->bytes = g_byte_array_free_to_bytes(file);
}

void
tensor_save(const TensorFixture *f, const char *name)
{
    g_autofree char *path = tensor_path(f, name);
    gsize length;
    const char *data = g_bytes_get_data(f->bytes, &length);

    assert_true(g_file_set_contents(path, data, (gssize)length, NULL));
}

void
tensor_save_text(const TensorFixture *f, const char *name, const char *text)
{
    g_autofree char *path = tensor_path(f, name);

    assert_true(g_file_set_contents(path, text, -1, NULL));
}

gboolean
tensor_parse(TensorFixture *f)
{
    gsize length;
    const void *data = g_bytes_get_data(f->bytes, &length);

    g_clear_error(&f->error);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    f->tensors = rp_safetensors_parse("FILE", data, length, &f->error);
    assert_true((f->tensors == NULL) == (f->error != NULL));
    if (f->error != NULL) {
        assert_null(strchr(f->error->message, '\n'));
        assert_true(g_str_has_prefix(f->error->message, "FILE: "));
    }
    return f->tensors != NULL;
}

GBytes *
tensor_load(const TensorFixture *f, const char *name)
{
    g_autofree char *path = tensor_path(f, name);
    char *data;
    gsize length;

    if (!g_file_get_contents(path, &data, &length, NULL))
        fail_msg("%s is not there", name);
    return g_bytes_new_take(data, length);
}

static gint
compare_names(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char *
tensor_list(const TensorFixture *f)
{
    g_autoptr(GDir) dir = g_dir_open(f->directory, 0, NULL);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL)
        g_ptr_array_add(names, g_strdup(name));
    g_ptr_array_sort(names, compare_names);
    g_ptr_array_add(names, NULL);
    return g_strjoinv(" ", (char **)names->pdata);
}
