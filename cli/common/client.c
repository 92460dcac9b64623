/* Sends one request to the agent's API over its unix socket, by libcurl, and waits for the answer.
 * What an answer means, and how a failure is reported, is left to cli.c and the commands. */
#include "cli/common/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <string.h>
#include <sys/un.h>

#include "lib/base/strbuf.h"

#define REPLY_MAX_BYTES (256 * MIB)

DEFINE_CLEANUP(CURL, curl_easy_cleanup);

typedef struct Body {
        StrBuf text;
        bool is_too_large;
} Body;

void client_reply_done(ClientReply *r) {
        free(r->body);
        json_decref(r->json);
        *r = (ClientReply){ 0 };
}

static size_t on_body(char *data, size_t size, size_t n, void *userdata) {
        Body *body = userdata;
        body->is_too_large = size * n > REPLY_MAX_BYTES - body->text.n;
        if (body->is_too_large)
                return 0; /* ends the transfer */
        strbuf_add_n(&body->text, data, size * n);
        return strbuf_error(&body->text) < 0 ? 0 : size * n;
}

static CURLcode perform(CURL *curl, const char *socket, const char *url, Body *body) {
        curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, socket);
        curl_easy_setopt(curl, CURLOPT_URL, url);
        curl_easy_setopt(curl, CURLOPT_PROXY, ""); /* ignore proxies of the environment */
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, body);
        return curl_easy_perform(curl);
}

static int fail(CURL *curl, CURLcode code, const Body *body, ClientReply *ret) {
        long error = 0;
        if (code == CURLE_OUT_OF_MEMORY)
                return -ENOMEM;
        if (code == CURLE_WRITE_ERROR) /* on_body() ended it */
                return body->is_too_large ? CLIENT_E_TOO_LARGE : -ENOMEM;
        curl_easy_getinfo(curl, CURLINFO_OS_ERRNO, &error);
        ret->why = (ClientFailure){ .error = (int)error,
                                    .timed_out = code == CURLE_OPERATION_TIMEDOUT,
                                    .text = code == CURLE_COULDNT_CONNECT && error
                                                    ? strerror((int)error)
                                                    : curl_easy_strerror(code) };
        return CLIENT_E_NO_AGENT;
}

static int build_reply(CURL *curl, Body *body, ClientReply *ret) {
        size_t n = body->text.n;
        ClientReply reply = { .body = strbuf_detach(&body->text), .n_body = n };
        if (!reply.body)
                return -ENOMEM;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &reply.status);
        reply.json = json_loads(reply.body, 0, NULL);
        *ret = reply;
        return 0;
}

int client_request(const char *socket, const char *method, const char *path, long timeout_msec,
                   ClientReply *ret) {
        /* libcurl would report such a path as a host that cannot be resolved */
        if (!socket[0] || strlen(socket) >= sizeof((struct sockaddr_un *)NULL)->sun_path) {
                ret->why = (ClientFailure){ .error = ENAMETOOLONG,
                                            .text = socket[0] ? "longer than a socket's path can be"
                                                              : "an empty path" };
                return CLIENT_E_NO_AGENT;
        }
        _cleanup_(curl_easy_cleanupp) CURL *curl = curl_easy_init();
        /* `localhost` is only for the Host: header; the connection goes to the socket */
        _cleanup_free_ char *url = strbuf_format("http://localhost%s", path);
        if (!curl || !url)
                return -ENOMEM;
        if (strcmp(method, "GET") != 0) {
                curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
                curl_easy_setopt(curl, CURLOPT_POSTFIELDS, "");
        }
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_msec);
        Body body = { 0 };
        CURLcode code = perform(curl, socket, url, &body);
        int r = code == CURLE_OK ? build_reply(curl, &body, ret) : fail(curl, code, &body, ret);
        strbuf_done(&body.text);
        return r;
}

char *client_escape(const char *value) {
        char *escaped = curl_easy_escape(NULL, value, 0);
        char *copy = escaped ? strdup(escaped) : NULL;
        curl_free(escaped);
        return copy;
}
