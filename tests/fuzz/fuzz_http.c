/* Any request, and an agent whose every word is rubbish: the answer must be well formed. The
 * input's lines are METHOD PATH NAME=VALUE            a query parameter, already decoded; any
 * number up to 16 (empty line) the body; it is also where the agent's texts and numbers come from
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "agent/api/api.h"
#include "lib/base/cleanup.h"

#define QUERIES_MAX 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* ── the agent ── */
static const uint8_t *words; /* the body again */
static size_t n_words, at_word;
static char texts[32][64];
static size_t at_text;

static unsigned next_byte(void) {
        return n_words == 0 ? 0 : words[at_word++ % n_words];
}

/* A text of up to 63 bytes, none of them NUL; sometimes NULL where that is allowed. */
static const char *next_text(bool may_be_null) {
        unsigned n = next_byte() % sizeof texts[0];
        char *text = texts[at_text++ % ELEMENTSOF(texts)];

        if (may_be_null && n == 0)
                return NULL;
        for (unsigned i = 0; i < n; i++) {
                text[i] = (char)next_byte();
                if (text[i] == '\0')
                        text[i] = '\n';
        }
        text[n] = '\0';
        return text;
}

static uint64_t next_number(void) {
        static const uint64_t special[] = { 0, 1, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX };
        unsigned i = next_byte();

        return i < ELEMENTSOF(special) ? special[i] : (uint64_t)i << (next_byte() % 40);
}

static void fuzz_view(AgentView *ret, void *userdata) {
        static DestinationView destinations[3];
        static ShippingView shipping[3];
        static SourceView sources[2];
        static LabelledCount counts[3];

        (void)userdata;
        at_text = 0; /* what an earlier view pointed to may go */
        *ret = (AgentView){
                .version = next_text(false),
                .instance_id = next_text(false),
                .state = next_text(false),
                .pid = (pid_t)next_byte(),
                .config_file = next_text(true),
                .config_last_error = next_text(true),
                .bytes_sent = next_number(),
                .bytes_read = next_number(),
                .started_usec = next_number() >> 14 /* dates that can be written */,
                .destinations = destinations,
                .n_destinations = next_byte() % 4,
                .shipping = shipping,
                .n_shipping = next_byte() % 4,
                .sources = sources,
                .n_sources = next_byte() % 3,
                .discards = counts,
                .n_discards = next_byte() % 4,
                .ready = next_byte() % 2,
                .ready_note = next_text(true),
        };
        for (int s = 0; s < N_BUNDLE_STATES; s++)
                ret->bundles[s] = next_number();
        for (size_t i = 0; i < ret->n_destinations; i++)
                destinations[i] = (DestinationView){ .name = next_text(false),
                                                     .type = "volume",
                                                     .state = next_text(false),
                                                     .last_error = next_text(true) };
        for (size_t i = 0; i < ret->n_shipping; i++)
                shipping[i] = (ShippingView){ .id = next_text(false),
                                              .destination = next_text(false),
                                              .sent_bytes = next_number(),
                                              .eta_seconds = next_number() };
        for (size_t i = 0; i < ret->n_sources; i++)
                sources[i] = (SourceView){ .name = next_text(false),
                                           .kind = "directory",
                                           .path = next_text(false),
                                           .watch = "scan",
                                           .note = next_text(true) };
        for (size_t i = 0; i < ret->n_discards; i++)
                counts[i] = (LabelledCount){ next_text(false), next_number() };
}

static char *copy(const char *s) {
        char *text = s ? strdup(s) : NULL;

        if (s && !text)
                abort();
        return text;
}

static BundleRecord next_bundle(const char *id) {
        BundleRecord b = {
                .source = copy(next_text(false)),
                .kind = next_byte() % N_SOURCE_KINDS,
                .path = copy(next_text(false)),
                .state = next_byte() % N_BUNDLE_STATES,
                .reason = copy(next_text(true)),
                .incomplete = copy(next_text(true)),
                .bytes = next_number(),
                .n_deliveries = next_byte() % 3,
        };

        (void)snprintf(b.id, sizeof b.id, "%s", id);
        (void)snprintf(b.date_time, sizeof b.date_time, "%s", next_text(false));
        (void)snprintf(b.cluster_id, sizeof b.cluster_id, "%s", next_text(false));
        b.deliveries = calloc(3, sizeof *b.deliveries);
        if (!b.deliveries)
                abort();
        for (size_t i = 0; i < b.n_deliveries; i++)
                b.deliveries[i] = (DeliveryRecord){
                        .destination = copy(next_text(false)),
                        .state = next_byte() % N_DELIVERY_STATES,
                        .proof = next_byte() % N_PROOFS,
                        .object = copy(next_text(true)),
                        .last_error = copy(next_text(true)),
                        .bytes = next_number(),
                };
        return b;
}

static int fuzz_list(const ViewFilter *f, int (*on_bundle)(const BundleRecord *b, void *u), void *u,
                     void *userdata) {
        unsigned n = next_byte() % 8;

        (void)userdata;
        if (f->limit < 2 || f->limit > 1001 || (f->source && f->source[0] == '\0'))
                abort(); /* the API let something through */
        for (unsigned i = 0; i < n && i < f->limit; i++) {
                _cleanup_(bundle_record_done) BundleRecord b =
                        next_bundle("directory-20260527T052100-0000000000a1");
                int r = on_bundle(&b, u);

                if (r < 0)
                        return r;
        }
        return next_byte() % 16 == 1 ? -EIO : 0;
}

static int fuzz_get(const char *id, BundleRecord *ret, char **ret_explain, void *userdata) {
        (void)userdata;
        if (next_byte() % 8 == 1)
                return -ENOENT;
        *ret = next_bundle(id);
        *ret_explain = copy(next_text(true));
        return 0;
}

static int next_result(char **ret_message) {
        static const int results[] = { 0, -ENOENT, -EPERM, -EIO };
        int r = results[next_byte() % ELEMENTSOF(results)];

        if (r == 0 || r == -EPERM)
                *ret_message = copy(next_text(true));
        return r;
}

static int fuzz_act(const char *id, const char *action, char **ret_message, void *userdata) {
        (void)id;
        (void)userdata;
        if (strcmp(action, "retry") != 0 && strcmp(action, "cancel") != 0 &&
            strcmp(action, "pin") != 0 && strcmp(action, "unpin") != 0)
                abort();
        return next_result(ret_message);
}

static int fuzz_flush(bool settle, char **ret_message, void *userdata) {
        (void)settle;
        (void)userdata;
        return next_result(ret_message);
}

/* ── the request ── */

/* Cuts a line off. @return it, NUL-terminated, or NULL at the end */
static char *next_line(char **text) {
        char *line = *text, *end;

        if (!line)
                return NULL;
        end = strchr(line, '\n');
        if (end)
                *end = '\0';
        *text = end ? end + 1 : NULL;
        return line;
}

static void check(const MhdRequest *request, const HttpResponse *response) {
        json_t *v;

        if (response->status < 200 || response->status > 599 || !response->body ||
            !response->content_type)
                abort();
        if ((response->status == 405) != (response->allow != NULL))
                abort();
        if (response->status < 300 && strncmp(request->path, "/v1/", 4) == 0 &&
            strcmp(response->content_type, "application/json") != 0)
                abort();
        if (strcmp(response->content_type, "application/json") != 0)
                return;
        v = json_loadb(response->body, response->body_bytes, JSON_REJECT_DUPLICATES, NULL);
        if (!v || (response->status >= 400) != json_is_object(json_object_get(v, "error")))
                abort();
        json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static const AgentBackend backend = { .view = fuzz_view,
                                              .list = fuzz_list,
                                              .get = fuzz_get,
                                              .act = fuzz_act,
                                              .flush = fuzz_flush };
        _cleanup_free_ char *text = malloc(n + 1);
        char *rest = text, *line, *path;
        HttpQuery queries[QUERIES_MAX];
        MhdRequest request = { .queries = queries };
        Api *api[2];

        if (!text)
                return 0;
        memcpy(text, data, n);
        text[n] = '\0';
        request.method = next_line(&rest);
        path = strchr(request.method, ' ');
        if (path)
                *path++ = '\0';
        request.path = path ? path : "";
        while ((line = next_line(&rest)) && line[0] != '\0' && request.n_queries < QUERIES_MAX) {
                char *value = strchr(line, '=');

                if (value)
                        *value++ = '\0';
                queries[request.n_queries++] = (HttpQuery){ line, value ? value : "" };
        }
        request.body = rest;
        words = rest ? data + (rest - text) : NULL;
        n_words = request.body_bytes = rest ? n - (size_t)(rest - text) : 0;

        for (int i = 0; i < 2; i++) {
                HttpResponse response = { 0 };

                if (api_new_for_test(&api[i], i == 1, &backend) < 0)
                        abort();
                at_word = 0;
                api_handle(&request, &response, api[i]);
                check(&request, &response);
                free(response.body);
                api_free(api[i]);
        }
        return 0;
}
