/**
 * The same of an export of Nsight Systems. Bytes that are no file of SQLite are taken for statements of SQL, which make
 * one: so columns have values of any type, and tables are views, or lack what they should have.
 */
#include <sqlite3.h>

#include "fuzz/recordings.h"

#define MOST_STEPS 50 /* of a thousand operations: statements may never end */

static int
count_steps(void *left)
{
    return --*(int *)left < 0;
}

/* Nothing outside the database, and no settings of it. */
static int
allow(void *unused, int action, const char *a, const char *b, const char *c, const char *d)
{
    return action == SQLITE_ATTACH || action == SQLITE_PRAGMA ? SQLITE_DENY : SQLITE_OK;
}

/* (transfer full: sqlite3_free()) (nullable): the file that @statements make, as far as they run */
static unsigned char *
make_database(const char *statements, sqlite3_int64 *size)
{
    sqlite3 *database = NULL;
    unsigned char *bytes = NULL;
    int left = MOST_STEPS;

    if (sqlite3_open(":memory:", &database) == SQLITE_OK) {
        (void)sqlite3_limit(database, SQLITE_LIMIT_LENGTH, 65536);
        (void)sqlite3_limit(database, SQLITE_LIMIT_ATTACHED, 0);
        (void)sqlite3_set_authorizer(database, allow, NULL);
        sqlite3_progress_handler(database, 1000, count_steps, &left);
        (void)sqlite3_exec(database, statements, NULL, NULL, NULL);
        sqlite3_progress_handler(database, 0, NULL, NULL);
        bytes = sqlite3_serialize(database, "main", size, 0);
    }
    sqlite3_close(database);
    return bytes;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autofree char *statements = g_strndup((const char *)data, size);
    sqlite3_int64 length = 0;

    check_recordings(rp_nsight_parse, (const char *)data, size);
    if (rp_nsight_is((const char *)data, size))
        return 0;
    unsigned char *bytes = make_database(statements, &length);

    if (bytes != NULL)
        check_recordings(rp_nsight_parse, (const char *)bytes, (gsize)length);
    sqlite3_free(bytes);
    return 0;
}
