/* Does what test_objects_s3.py asks for to objects of a bucket or a volume, one after the other,
 * and prints what came of it: outcome, data or names, modified_usec, clock, error.
 *
 *   objects_drive STATE INSTANCE KEYS (list|get|create|put) NAME [DATA] …
 *
 * KEYS are those of a destination in the configuration; `-` as DATA of a `get` and `list`. `cancel`
 * is a create that is cancelled at once; `twice` is two creates of the same name, one with `a` and
 * one with `b` behind the data, before either ends. */
#include <inttypes.h>
#include <stdio.h>

#include "lib/http/http.h"
#include "tests/agent/delivery/objects_test.h"

extern char **environ;

static void print_answer(Answer *a) {
        static const char *const words[] = { "ok",          "not-found", "exists",
                                             "unreachable", "unable",    "invalid" };
        const ObjectResult *r = &a->result;
        printf("%s\t%s\t%" PRId64 "\t%d\t%" PRId64 "\t%" PRId64 "\t%s\n", words[r->outcome],
               r->data ? r->data : a->names, r->modified_usec, r->has_clock, r->clock_offset_usec,
               r->uncertainty_usec, r->error ? r->error : "");
        answer_done(a);
}

static int cancel(Node *n, const char *name, const char *data) {
        Answer a;
        int r = start(n, &a, OBJECT_CREATE, name, data);
        if (r < 0)
                return r;
        n->n_running--;
        if (sd_event_run(n->event, 0) < 0) /* not the answer, which takes longer */
                return -EIO;
        a.call = object_call_cancel(a.call);
        printf("cancelled\n");
        return 0;
}

static int twice(Node *n, const char *name, const char *data) {
        Answer answers[2];
        _cleanup_free_ char *a = strbuf_format("%sa", data), *b = strbuf_format("%sb", data);
        int r = start(n, &answers[0], OBJECT_CREATE, name, a);
        if (r == 0)
                r = start(n, &answers[1], OBJECT_CREATE, name, b);
        if (r < 0 || !finish_all(n))
                return -EIO;
        print_answer(&answers[0]);
        print_answer(&answers[1]);
        return 0;
}

static int run(Node *n, char **words) {
        static const char *const operations[] = { "list", "get", "create", "put" };
        Answer a;
        if (strcmp(words[0], "cancel") == 0)
                return cancel(n, words[1], words[2]);
        if (strcmp(words[0], "twice") == 0)
                return twice(n, words[1], words[2]);
        for (size_t i = 0; i < ELEMENTSOF(operations); i++)
                if (strcmp(words[0], operations[i]) == 0) {
                        int r = do_object(n, &a, (ObjectOperation)i, words[1],
                                          i < OBJECT_CREATE ? NULL : words[2]);
                        if (r >= 0)
                                print_answer(&a);
                        return r;
                }
        return -EINVAL;
}

int main(int argc, char **argv) {
        Node n;
        if (argc < 4 || http_global_init() < 0 ||
            !node_init(&n, argv[1], argv[2], argv[3], environ))
                return 2;
        for (int i = 4, r; i + 2 < argc; i += 3)
                if ((r = run(&n, argv + i)) < 0) {
                        (void)fprintf(stderr, "%s: %s\n", argv[i], strerror(-r));
                        return 1;
                }
        node_done(&n);
        return 0;
}
