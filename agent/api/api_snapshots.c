/* What is asked of snapshots: to take one, what one holds, and its files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/api/api_call.h"
#include "lib/base/json_out.h"
#include "lib/base/strbuf.h"

#define SNAPSHOTS_PATH "/v1/snapshots"

void api_post_snapshot(ApiCall *c) {
        _cleanup_free_ char *message = NULL;
        char name[SNAPSHOT_NAME_SIZE];
        int r;

        if (!api_refuse_any_query(c))
                return;
        r = c->backend->snapshot(name, &message, c->backend->userdata);
        if (!api_answer_fault(c, r, message))
                api_answer_json(c, 202, json_pack("{s:s}", "name", name));
}

static void snapshot_answer_done(SnapshotAnswer *a) {
        for (char **f = a->files; f && *f; f++)
                free(*f);
        free(a->files);
        free(a->directory);
        free(a->data);
}

/* The document is JSON already, and may be large: it goes into the answer as it is. */
static void answer_snapshot(ApiCall *c, const SnapshotAnswer *a) {
        StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_string(&b, "name", c->id);
        json_out_bool(&b, "done", a->done);
        json_out_path(&b, "directory", a->directory ? a->directory : "");
        json_out_array(&b, "files");
        for (char **f = a->files; f && *f; f++)
                json_out_path(&b, NULL, *f);
        json_out_end_array(&b);
        json_out_raw(&b, "document", a->data ? a->data : "null");
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        api_answer_text(c, 200, "application/json", strbuf_take(&b));
}

/* @param c  id: the snapshot's name; action: one of its files, or NULL */
static void get_snapshot(ApiCall *c) {
        _cleanup_(snapshot_answer_done) SnapshotAnswer a = { 0 };
        char name[128];
        int r;

        if (!api_refuse_any_query(c))
                return;
        r = c->backend->get_snapshot(c->id, c->action, &a, c->backend->userdata);
        if (r == -ENOENT)
                api_answer_error(c, 404, "not_found", "no snapshot '%s', or no such file in it",
                                 api_quote(c->id, name, sizeof name));
        else if (r < 0)
                api_answer_failure(c, r);
        else if (!c->action)
                answer_snapshot(c, &a);
        else
                *c->response = (HttpResponse){ .status = 200,
                                               .content_type = "application/octet-stream",
                                               .body = TAKE_PTR(a.data),
                                               .body_bytes = a.n_data };
}

bool api_route_snapshot(ApiCall *c) {
        char name[SNAPSHOT_NAME_SIZE];
        const char *rest = c->request->path + strlen(SNAPSHOTS_PATH "/");
        size_t n;

        if (strncmp(c->request->path, SNAPSHOTS_PATH "/", strlen(SNAPSHOTS_PATH "/")) != 0)
                return false;
        n = strcspn(rest, "/");
        if (n == 0 || n >= sizeof name)
                return false;
        memcpy(name, rest, n);
        name[n] = '\0';
        c->id = name;
        c->action = rest[n] == '/' ? rest + n + 1 : NULL;
        if (api_is_get(c->request->method))
                get_snapshot(c);
        else
                api_refuse_method(c, "GET, HEAD");
        c->id = NULL; /* it was ours */
        return true;
}
