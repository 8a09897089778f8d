/**
 * A service with a tiny model of bytes at a free port of this machine, and clients that write to its socket.
 */
#pragma once

#include "tests/rp-test.h"

#include "run/serve/service.h"
#include "run/trained.h"
#include "tests/json-tree.h"

/* Tokens of a prompt and its answer: so many that an answer of all takes seconds. */
#define SERVE_POSITIONS 8192
/* A path and one that has the same limits for all. */
#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"

/* The model, once for all tests. */
typedef struct {
    char *directory;
    RpTrained model;
    RpModelText text;
    RpGenerator *generators[2]; /* services have one, unless a test gives them both */
} ServeModel;

extern ServeModel serve_model;
int serve_model_setup(void **state);
int serve_model_teardown(void **state);

/* A service; its log counts. */
typedef struct {
    RpServiceOptions options; /* to be changed before it is opened */
    RpService *service;
    guint n_logged, n_left; /* atomic */
    guint n_last;           /* tokens of the answer of the last one logged */
} Served;

void serve_fill(Served *served);
void serve_clear(Served *served);
void serve_open(Served *served);
/* Waits for seconds at most until @n requests were logged. */
void serve_wait_for(Served *served, guint n);

/* A socket that is connected to it; reading waits ten seconds at most. */
int serve_connect(const Served *served);
void serve_write(int socket, const char *text, gssize length);
/* All that comes until the server closes. (transfer full) */
char *serve_read(int socket);

/* An answer of HTTP. */
typedef struct {
    guint status;
    char *head, *body;
    RpTree *json; /* or %NULL */
} Reply;

void reply_clear(Reply *reply);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Reply, reply_clear)

Reply serve_parse(char *answer);
/* Sends a request whose first line, without the version, is @line; @headers: lines with their ends. */
Reply serve_request(const Served *served, const char *line, const char *headers, const char *body);
/* Posts JSON. */
Reply serve_post(const Served *served, const char *path, const char *body);
/* The same, again where there are too many at once; fails unless the status is 200. */
Reply serve_ask(const Served *served, const char *path, const char *body);
/* A text of its JSON; fails if it is missing. */
const char *reply_text(const Reply *reply, const char *path);
double reply_number(const Reply *reply, const char *path);

/* The text of all parts of a stream's choice @index, in which no part ends within a character; fails unless it ends
 * well. (transfer full) @finish: (out) (transfer full) */
char *reply_stream(const Reply *reply, guint index, char **finish);
/* "..." as JSON has it. (transfer full) */
char *serve_quote(const char *text);
