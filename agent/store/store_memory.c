/* While the state directory is full, fails or is read-only: what cannot be written is kept in a database in memory with the same tables,
 * so that deliveries go on. It is of no use after a crash; what is lost with it is found again at the destinations. */
#include <errno.h>
#include <string.h>

#include "agent/store/ledger.h"
#include "agent/store/store_private.h"
#include "lib/base/cleanup.h"

/* The parts of 50,000 or so: an upload of 10,000 for each of five destinations. What does not fit is not gone on with after a cut. */
#define MEMORY_BYTES (16 * MIB)

bool store_is_trouble(int error) {
        return error == -ENOSPC || error == -EIO || error == -EROFS || error == -EUCLEAN;
}

int store_note_trouble(Store *s, int r) {
        if (s->trouble < 0 || !store_is_trouble(r))
                return r;
        s->trouble = r;
        if (s->on_trouble)
                s->on_trouble(r, s->on_trouble_userdata);
        return r;
}

void store_on_trouble(Store *s, void (*on_trouble)(int error, void *userdata), void *userdata) {
        s->on_trouble = on_trouble;
        s->on_trouble_userdata = userdata;
}

int store_trouble(const Store *s) {
        return s->trouble;
}

/* ---- the database in memory ---- */

Store *store_memory_free(Store *m) {
        if (!m)
                return NULL;
        store_finalize(m);
        free(m);
        return NULL;
}
DEFINE_CLEANUP(Store, store_memory_free);

Store *store_memory(Store *s) {
        if (s->memory)
                return s->memory;
        _cleanup_(store_memory_freep) Store *m = calloc(1, sizeof *m);
        if (!m)
                return NULL;
        m->dir_fd = m->lock_fd = -1;
        int r = sqlite3_open_v2(":memory:", &m->db,
                                SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                                NULL);
        if (r == SQLITE_OK) {
                store_schema_be_careful(m->db);
                r = store_schema_in_memory(m->db, (unsigned)MEMORY_BYTES);
        }
        if (r == SQLITE_OK)
                r = store_schema_prepare(m);
        if (r != SQLITE_OK)
                return NULL;
        return s->memory = TAKE_PTR(m);
}

Store *store_memory_of(Store *s, const char *bundle) {
        Store *m = store_memory(s);
        BundleRecord stub = { .source = (char *)"", .path = (char *)"" };
        if (!m || strlen(bundle) >= sizeof stub.id)
                return NULL;
        strcpy(stub.id, bundle);
        int r = store_add(m, &stub);
        return r == 0 || r == -EEXIST ? m : NULL;
}

/* ---- back ---- */

static void add_back(const char *name, uint64_t value, void *userdata) {
        Store *s = userdata;
        if (value > 0) /* a failure undoes the transaction, and with it all of them */
                (void)store_counter_write(s, name, value);
}

/* Always writes something, so that it is a proof. */
static int put_counters_back(Store *s) {
        int r = store_begin(s);
        if (r < 0)
                return r;
        r = store_counter_write(s, "store_troubles", 1);
        if (r == 0 && s->memory)
                r = store_counter_list(s->memory, "", add_back, s);
        if (r < 0) {
                store_rollback(s);
                return r;
        }
        return store_commit(s);
}

static void clear_counters(Store *m) {
        _cleanup_reset_ sqlite3_stmt *st = m->statements[STORE_COUNTER_CLEAR];
        (void)sqlite3_step(st); /* in memory, and needs none */
}

int store_make(Store *s) {
        return s->is_absent ? store_reopen(s) : 0;
}

int store_recover(Store *s) {
        int r = put_counters_back(s);
        if (r < 0)
                return r;
        if (s->memory)
                clear_counters(s->memory);
        r = s->is_alone ? store_reopen(s) : 0;
        if (r < 0)
                return r;
        s->trouble = 0;
        return 0;
}

bool store_has_put_off(Store *s, const char *id) {
        _cleanup_free_ uint64_t *prints = NULL;
        size_t n;
        return s->memory && store_get_own_prints(s->memory, id, &prints, &n) == 0 && prints;
}

int store_recover_bundle(Store *s, const char *id) {
        _cleanup_free_ uint64_t *prints = NULL;
        size_t n = 0;
        if (!s->memory)
                return 0;
        int r = store_get_own_prints(s->memory, id, &prints, &n);
        return r < 0 || !prints ? r : store_put_prints(s, id, prints, n);
}

void store_recovered_bundle(Store *s, const char *id) {
        if (!s->memory)
                return;
        _cleanup_reset_ sqlite3_stmt *st = s->memory->statements[STORE_PRINTS_DROP];
        if (sqlite3_bind_text(st, 1, id, -1, SQLITE_STATIC) == SQLITE_OK)
                (void)sqlite3_step(st); /* what is left of it only takes room */
}
