/* One call of the API: its answers, and the faults that any call can have. */
#include "agent/api/api_call.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agent/api/view_json.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

const char *api_quote(const char *s, char *buf, size_t size) {
        size_t n = strlen(s), used = 0;

        while (n > 0) {
                char one[UTF8_SPELL_SIZE];
                size_t bytes = utf8_spell(s, n, one), spelled = strlen(one);

                if (used + spelled + sizeof "…" > size) {
                        memcpy(buf + used, "…", sizeof "…");
                        return buf;
                }
                memcpy(buf + used, one, spelled);
                used += spelled;
                s += bytes;
                n -= bytes;
        }
        buf[used] = '\0';
        return buf;
}

void api_answer_text(ApiCall *c, unsigned status, const char *content_type, char *text) {
        *c->response =
                (HttpResponse){ .status = status, .content_type = content_type, .body = text };
        if (text)
                c->response->body_bytes = strlen(text);
        else
                c->response->status = 500; /* no memory */
}

void api_answer_json(ApiCall *c, unsigned status, json_t *v) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *text = v ? json_dumps(v, JSON_INDENT(2)) : NULL;

        json_decref(v);
        if (text) {
                strbuf_add(&b, text);
                strbuf_add(&b, "\n");
        }
        api_answer_text(c, status, "application/json", text ? strbuf_take(&b) : NULL);
}

void api_answer_error(ApiCall *c, unsigned status, const char *code, const char *fmt, ...) {
        _cleanup_free_ char *message = NULL;
        va_list args;
        int n;

        va_start(args, fmt);
        n = vasprintf(&message, fmt, args);
        va_end(args);
        if (n < 0)
                message = NULL;
        api_answer_json(c, status,
                        json_pack("{s:{s:s, s:o}}", "error", "code", code, "message",
                                  view_text_json(message ? message : "no memory")));
}

void api_refuse_method(ApiCall *c, const char *allow) {
        char method[64];

        api_answer_error(c, 405, "method_not_allowed", "'%s' is not possible here; use %s",
                         api_quote(c->request->method, method, sizeof method), allow);
        c->response->allow = allow;
}

void api_answer_failure(ApiCall *c, int error) {
        api_answer_error(c, 500, "internal", "the agent could not answer: %s; see its log",
                         strerror(-error));
}

bool api_answer_fault(ApiCall *c, int r, const char *message) {
        if (r == -EPERM)
                api_answer_error(c, 409, "not_possible", "%s",
                                 message ? message : "not possible now");
        else if (r < 0)
                api_answer_failure(c, r);
        return r < 0;
}

bool api_refuse_query(ApiCall *c, const HttpQuery *q, const char *remedy) {
        char name[128], value[128];

        api_answer_error(c, 400, "bad_request", "query parameter '%s': '%s' %s",
                         api_quote(q->name, name, sizeof name),
                         api_quote(q->value, value, sizeof value), remedy);
        return false;
}

bool api_refuse_any_query(ApiCall *c) {
        return c->request->n_queries == 0 ||
               api_refuse_query(c, &c->request->queries[0], "is not taken here; leave it out");
}

bool api_is_get(const char *method) {
        return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}
