/* The forms that strings of the configuration must have: names, paths, templates, addresses. Pure
 * text. */
#pragma once

#include <stdbool.h>

#include "lib/base/strbuf.h"

typedef struct Form {
        /** @return whether text has the form; when not, *fault tells what is wrong about it */
        bool (*check)(const char *text, StrBuf *fault);
        const char *what;      /* what the string is, e.g. `an absolute path` */
        const char *remedy;    /* how it is written, for people */
        bool is_path;          /* absolute: kept without `//`, `/./` and a trailing slash */
        const char *variables; /* letters that may follow `%`; NULL = no template */
} Form;

#define FORM_SOURCE_VARIABLES "dcptli"
#define FORM_DESTINATION_VARIABLES "dcptliknhu"

extern const Form form_name;        /* [A-Za-z0-9._-]{1,64}, not `.` or `..` */
extern const Form form_path;        /* absolute, without `..` */
extern const Form form_socket;      /* a path short enough for sockaddr_un */
extern const Form form_source_path; /* a path with the runtime's format variables */
extern const Form form_volume_path; /* a path with all format variables */
extern const Form form_prefix;      /* an object key's prefix with all format variables */
extern const Form form_listen;      /* host:port */
extern const Form form_bus;         /* tcp://host:port or ipc://path */
extern const Form form_endpoint;    /* http(s)://host[:port] */
extern const Form form_proxy;       /* scheme://host[:port] */
extern const Form form_s3_prefix;   /* s3://bucket/prefix */
extern const Form form_bucket;
extern const Form form_region;
extern const Form form_storage_class;
extern const Form form_profile;  /* a name in AWS's shared files */
extern const Form form_kms_key;  /* id, ARN or alias of a key */
extern const Form form_tag_name; /* of an object's tag */
extern const Form form_tag_value;
extern const Form form_account;
extern const Form form_pattern;  /* an fnmatch pattern on a relative path */
extern const Form form_variable; /* an fnmatch pattern on the name of an environment variable */

/** The part of a path template that has no variable: up to the first component with one, `%%`
 * resolved, without trailing slash; `/` when nothing is left. @return the caller's, NULL for lack
 * of memory */
char *form_fixed_part(const char *path_template);

/** @return whether a template uses the variable */
bool form_has_variable(const char *path_template, char letter);
