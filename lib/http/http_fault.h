/* What went wrong with a request, as a sentence for people. Private to http.c; plain text, knows no library. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct HttpFault {
        int error;         /* HTTP_E_* */
        const char *place; /* `host:port` */
        const char *
                cause; /* what the library or the kernel says of it; NULL or "" = nothing: it took too long */
        const char *
                told; /* by libcurl; tells the address of a proxy that could not be connected to; NULL = nothing */
        bool was_connected;    /* and then nothing could be sent */
        unsigned proxy_status; /* with which a proxy refused; 0 = it did not */
        uint64_t connect_timeout_usec, stall_usec, timeout_usec;
        size_t reply_max_bytes;
} HttpFault;

/** libcurl names whom it could not connect to, `Failed to connect to HOST port N after …`. @return whether that is not `place`: a proxy then, ours
 * or the environment's */
bool http_fault_is_elsewhere(const char *told, const char *place);

/** Writes `place: what`, cut at size. Says nothing of URLs and headers, which may hold secrets. A cause loses its control characters
 * and the capital at its beginning. @return buf */
const char *http_fault_explain(const HttpFault *f, char *buf, size_t size);
