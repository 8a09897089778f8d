/**
 * Jinja templates as chats have them: compiled once, rendered as transformers does.
 *
 * The language is that of Jinja 3.1 in transformers' sandbox: trim_blocks and lstrip_blocks,
 * break and continue, `{% generation %}`, tojson without HTML escapes, raise_exception() and
 * strftime_now(). Lists and dicts cannot be changed. Not there, and refused by name with line and
 * column: call blocks, include, import, extends, block, autoescape, recursive loops, `*` and `**`
 * in calls, integers beyond 64 bits. docs/data.md lists filters, tests and methods.
 *
 * Every template ends: steps, memory, depth and output are bounded. A template is read only once it
 * is compiled; threads may share it.
 */
#pragma once

#include "text/template/values/value.h"

typedef struct _RpTemplate RpTemplate;

/**
 * rp_template_new:
 * @name: for messages
 * @source: @length bytes of UTF-8
 *
 * Errors: RP_TEMPLATE_ERROR_SYNTAX with line and column (bytes, from 1)
 */
RpTemplate *rp_template_new(const char *name, const char *source, gsize length, GError **error);
void rp_template_free(RpTemplate *template);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTemplate, rp_template_free)

/* The text that it was made of. */
const char *rp_template_source(const RpTemplate *template);
/* Whether it has `{% generation %}` blocks. */
gboolean rp_template_marks_generation(const RpTemplate *template);
/* Whether it uses the variable or function @name anywhere. */
gboolean rp_template_uses(const RpTemplate *template, const char *name);

typedef struct {
    gsize start; /* bytes of the text */
    gsize end;
} RpTextSpan;

/* The text that one round of a loop made whose item was a dict with a tag. */
typedef struct {
    guint tag;
    RpTextSpan span;
} RpTextTrace;

typedef struct {
    GString *text;
    GArray *generations; /* (element-type RpTextSpan): generation blocks, in their order */
    GArray *traces;      /* (element-type RpTextTrace): none of empty text */
    gboolean hidden;     /* a generation block stood in a macro or a set block: no span */
} RpRendered;

void rp_rendered_clear(RpRendered *rendered);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpRendered, rp_rendered_clear)

/* 0 of a bound: the default. */
typedef struct {
    GDateTime *now; /* (nullable): the time of strftime_now(); NULL: this moment */
    guint64 max_steps;
    gsize max_bytes; /* limit of memory; and of the text */
} RpTemplateOptions;
#define RP_TEMPLATE_MAX_STEPS G_GUINT64_CONSTANT(20000000)
#define RP_TEMPLATE_MAX_BYTES ((gsize)512 << 20)

/**
 * rp_template_render:
 * @variables: the template's, by their names
 * @rendered: (out): set on success only
 *
 * Errors: RP_TEMPLATE_ERROR with line and column of the template
 */
gboolean rp_template_render(const RpTemplate *template, const RpDict *variables,
                            const RpTemplateOptions *options, RpRendered *rendered,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
