/* A URL in its parts, by the parser that libcurl itself uses when it connects. Pure. */
#pragma once

#include <stdbool.h>

#include "lib/base/cleanup.h"

typedef struct Url {     /* owned */
        char *scheme;    /* lower case */
        char *host;      /* lower case, IPv6 in brackets */
        char *authority; /* host, and `:port` unless it is the scheme's own: as in a Host: header */
        char *path;      /* decoded, "/" when there is none; NULL = with control characters */
        unsigned port;   /* 0 = the URL has none, and its scheme no default */
        bool is_address; /* the host is an IPv4 or IPv6 address */
        bool is_origin;  /* nothing follows host and port, not even a slash */
        bool has_query;  /* or a fragment */
} Url;

/** Accepts any scheme; the host is a DNS name, an IPv4 address in four numbers or an IPv6 address
 * without a zone.
 * @return 0 and *ret, -EINVAL (also for a URL with a user name: it may hold a password), -ENOMEM */
int url_parse(Url *ret, const char *text);
void url_done(Url *u);

bool url_is_http(const Url *u); /* http or https */
