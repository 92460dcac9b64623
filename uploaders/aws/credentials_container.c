#include "uploaders/aws/credentials_container.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/http/url.h"
#include "uploaders/aws/credentials_env.h"
#include "uploaders/aws/credentials_say.h"
#include "uploaders/aws/credentials_secret.h"

#define RELATIVE_HOST "http://169.254.170.2"
#define TOKEN_MAX_BYTES ((size_t)(64 * KIB))

static const char *const trusted_hosts[] = { "localhost", "169.254.170.2", "169.254.170.23" };

/* @param u  of http. Names other than localhost are not looked up: the answer could change between looking and asking. */
static bool is_trusted_host(const Url *u) {
        char inner[INET6_ADDRSTRLEN];
        struct in6_addr v6, pod_identity;
        struct in_addr v4;
        size_t n = strlen(u->host);

        for (size_t i = 0; i < ELEMENTSOF(trusted_hosts); i++)
                if (strcmp(u->host, trusted_hosts[i]) == 0)
                        return true;
        if (inet_pton(AF_INET, u->host, &v4) == 1)
                return ntohl(v4.s_addr) >> 24 == 127;
        if (u->host[0] != '[' || n - 2 >= sizeof inner)
                return false;
        *(char *)mempcpy(inner, u->host + 1, n - 2) = '\0';
        if (inet_pton(AF_INET6, inner, &v6) != 1 ||
            inet_pton(AF_INET6, "fd00:ec2::23", &pod_identity) != 1)
                return false;
        return IN6_IS_ADDR_LOOPBACK(&v6) || memcmp(&v6, &pod_identity, sizeof v6) == 0;
}

static char *check_full(const char *text) {
        _cleanup_(url_done) Url u = { 0 };

        if (url_parse(&u, text) < 0 || !url_is_http(&u))
                return credentials_say(
                        "AWS_CONTAINER_CREDENTIALS_FULL_URI is no http or https URL");
        if (strcmp(u.scheme, "https") == 0 || is_trusted_host(&u))
                return NULL;
        return credentials_say("AWS_CONTAINER_CREDENTIALS_FULL_URI names the host '%s' by http: "
                               "only this machine (127.0.0.1, [::1], localhost), 169.254.170.2, "
                               "169.254.170.23 and [fd00:ec2::23] are trusted with that; use https",
                               u.host);
}

int credentials_container_url(char *const *environment, char **ret, char **ret_fault) {
        const char *relative =
                credentials_env_get(environment, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        const char *full = credentials_env_get(environment, "AWS_CONTAINER_CREDENTIALS_FULL_URI");

        if (relative) {
                if (relative[0] != '/' || strpbrk(relative, " \t\r\n\\#")) {
                        *ret_fault = credentials_say("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is no "
                                                     "path: it must begin with '/'");
                        return *ret_fault ? -EINVAL : -ENOMEM;
                }
                return asprintf(ret, RELATIVE_HOST "%s", relative) < 0 ? -ENOMEM : 0;
        }
        if (!full)
                return -ENOENT;
        *ret_fault = check_full(full);
        if (*ret_fault)
                return -EINVAL;
        *ret = strdup(full);
        return *ret ? 0 : -ENOMEM;
}

int credentials_container_token(char *const *environment, char **ret, char **ret_fault) {
        const char *path =
                credentials_env_get(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        const char *token = credentials_env_get(environment, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
        _cleanup_(credentials_secret_freep) char *text = NULL;
        size_t n;

        *ret_fault = NULL;
        if (path) {
                int r = credentials_secret_read(path, TOKEN_MAX_BYTES, &text, &n);
                if (r == -ENOMEM)
                        return r;
                if (r < 0) {
                        *ret_fault = credentials_say("cannot read the container's token from %s "
                                                     "(AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE): "
                                                     "%s",
                                                     path, strerror(-r));
                        return -EINVAL;
                }
                if (n == 0 || strlen(text) != n) {
                        *ret_fault = credentials_say("the container's token file %s "
                                                     "(AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE) is "
                                                     "%s",
                                                     path, n == 0 ? "empty" : "not text");
                        return -EINVAL;
                }
                token = text;
        }
        if (!token) {
                *ret = NULL;
                return 0;
        }
        if (strpbrk(token, "\r\n")) {
                *ret_fault = credentials_say("the container's token (%s%s) has a line break in it, "
                                             "which no header can have",
                                             path ? "in " : "AWS_CONTAINER_AUTHORIZATION_TOKEN",
                                             path ? path : "");
                return -EINVAL;
        }
        *ret = credentials_secret_join("Authorization: ", token);
        return *ret ? 0 : -ENOMEM;
}
